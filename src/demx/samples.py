"""Samples out of files: npz, npy, extxyz of one kind of cluster, netCDF (see `demx.outputs`)."""

import itertools
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demx.errors import UserError
from demx.types import Target


class Origin(NamedTuple):
    """Whose samples they are, as their file tells it."""

    target: str
    method: str
    training_seed: int

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> "Origin | None":
        """None of samples that demx has not drawn."""
        if not provenance.keys() >= {"demx", *cls._fields}:
            return None
        target, method, seed = (provenance[name] for name in cls._fields)
        return cls(str(target), str(method), int(seed))

    def __str__(self) -> str:
        return f"{self.target} by {self.method}, seed {self.training_seed}"


class Stored(NamedTuple):
    """x: (n, *shape). log_weight, island (see `demx.types.Samples`): (n,) if the file has them.

    Of frames of atoms symbols: their elements, in order; angstrom: (n,) Å in one unit of x.
    """

    x: np.ndarray
    log_weight: np.ndarray | None = None
    island: np.ndarray | None = None
    origin: Origin | None = None
    symbols: tuple[str, ...] | None = None
    angstrom: np.ndarray | None = None


def read(path: Path) -> Stored:
    """npz with an array 'x' (and perhaps 'log_weight'), npy, extxyz or nc; nothing is executed."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of samples (npz, npy, extxyz, nc), found none")
    if path.suffix in (".xyz", ".extxyz"):
        return _read_extxyz(path)
    if path.suffix == ".nc":
        return _read_netcdf(path)
    try:
        with path.open("rb") as file:
            data = np.load(file, allow_pickle=False)
            if isinstance(data, np.ndarray):
                return Stored(data)
            found = {name: data[name] for name in ("x", "log_weight", "island") if name in data}
            names = ", ".join(data)
            about = str(data["provenance"]) if "provenance" in data else "{}"
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path}: expected a file of samples (npz, npy, extxyz, nc), found one that cannot be "
            "read as what its name says"
        ) from error
    if "x" not in found:
        raise UserError(f"{path}: expected an array named 'x', found {names}")
    return Stored(**found, origin=_told(about))


def _told(provenance: str) -> Origin | None:
    """Of the text that demx writes; any other has nothing to say."""
    try:
        about = json.loads(provenance)
    except ValueError:
        return None
    return Origin.of(about) if isinstance(about, dict) else None


def _read_extxyz(path: Path) -> Stored:
    try:
        from ase.io import iread
    except ImportError as error:
        raise UserError(
            f"{path}: reading extxyz needs ASE; pip install '.[ase]' in demx's directory, or "
            "give an npz"
        ) from error
    try:
        frames = list(iread(str(path), format="extxyz"))
    except Exception as error:  # ASE raises many kinds
        raise UserError(f"{path}: not a readable extxyz file ({error})") from error
    counts = {len(frame) for frame in frames}
    if len(counts) != 1:
        raise UserError(f"{path}: expected frames of one size, found {sorted(counts)} atoms")
    symbols = tuple(frames[0].get_chemical_symbols())
    for i, frame in enumerate(frames):
        if (other := tuple(frame.get_chemical_symbols())) != symbols:
            raise UserError(
                f"{path}: expected the same atoms in every frame, in one order, found "
                f"{formula(symbols)} in the first and {formula(other)} in that after {i} others"
            )
    # positions are in Å; of atoms, demx says how many of them one unit of x has
    angstrom = np.array([frame.info.get("angstrom", 1.0) for frame in frames], float)
    x = np.stack([frame.positions for frame in frames]) / angstrom[:, None, None]
    weights, islands = ([frame.info.get(name) for frame in frames]
                        for name in ("log_weight", "island"))  # fmt: skip
    return Stored(
        x.astype(np.float32),
        None if None in weights else np.array(weights, np.float32),
        None if None in islands else np.array(islands, np.int32),
        Origin.of(frames[0].info),
        symbols,
        angstrom,
    )


def formula(symbols: Iterable[str]) -> str:
    """Elements as they follow each other: AuCu3 is one of gold, then three of copper."""
    runs = ((symbol, sum(1 for _ in same)) for symbol, same in itertools.groupby(symbols))
    return "".join(f"{symbol}{count if count > 1 else ''}" for symbol, count in runs)


def _read_netcdf(path: Path) -> Stored:
    """InferenceData with a variable 'x'. Chains take turns, and each is an island."""
    try:
        import h5netcdf
    except ImportError as error:
        raise UserError(
            f"{path}: reading netCDF needs h5netcdf; pip install '.[arviz]' in demx's directory, "
            "or give an npz"
        ) from error
    try:
        with h5netcdf.File(path, "r") as file:
            # as drawn where there are weights
            found = _variables(file, "weighted_" if "weighted_sample_stats" in file else "")
            rest = _variables(file, "rest_").get("x")
            origin = Origin.of(dict(file.attrs))
    except OSError as error:
        raise UserError(f"{path}: not a readable netCDF file ({error})") from error
    if "x" not in found:
        raise UserError(f"{path}: expected a variable 'x' in the group 'posterior', found none")
    count, draws = found["x"].shape[:2]
    flat = {name: np.swapaxes(a, 0, 1).reshape(-1, *a.shape[2:]) for name, a in found.items()}
    if count > 1:
        flat["island"] = np.tile(np.arange(count), draws)
    if rest is not None:  # one draw more of the first chains
        flat["x"] = np.concatenate([flat["x"], rest[:, 0]])
        flat["island"] = np.concatenate([flat["island"], np.arange(len(rest))])
    return Stored(**flat, origin=origin)


def _variables(file, before: str) -> dict[str, np.ndarray]:
    """x, log_weight, island, (chains, draws, …), of the groups whose names begin so."""
    # a site may be called x; whatever else a site is called, weights and islands are no sites
    places = {
        "x": ("unconstrained_posterior", "posterior"),
        "log_weight": ("sample_stats",),
        "island": ("sample_stats",),
    }
    found = {}
    for name, kinds in places.items():
        groups = [file[before + kind] for kind in kinds if before + kind in file]
        holding = [group for group in groups if name in group.variables]
        found |= {name: np.asarray(holding[0].variables[name])} if holding else {}
    return found


def fitting(stored: Stored, target: Target, path: Path | str) -> Stored:
    """The samples in a target's shape and unit, of its atoms: trailing flat axes and a z of zeros
    are understood."""
    x, shape = np.asarray(stored.x), target.space.shape
    if not np.issubdtype(x.dtype, np.floating):
        raise UserError(f"{path}: expected floating-point samples, found {x.dtype}")
    own, unit = getattr(target, "symbols", None), getattr(target, "angstrom", None)
    if own is not None and stored.symbols not in (None, tuple(own)):
        raise UserError(
            f"{path}: expected the target's atoms in their order, {formula(own)}, found "
            f"{formula(stored.symbols)}; list them as the target does"
        )
    if unit is not None and stored.angstrom is not None:
        x = x * (stored.angstrom / unit)[:, None, None]
        stored = stored._replace(angstrom=np.full(len(x), float(unit)))
    if (
        x.ndim == 3
        and len(shape) == 2
        and x.shape[2] == 3
        and shape[1] == 2
        and not x[..., 2].any()
    ):
        x = x[..., :2]
    if x.ndim == 2 and len(shape) == 2 and x.shape[1] == shape[0] * shape[1]:
        x = x.reshape(-1, *shape)
    if x.shape[1:] != shape or len(x) == 0:
        wanted = ", ".join(map(str, shape))
        raise UserError(f"{path}: expected samples of shape (n, {wanted}), found {x.shape}")
    for name, column in (("weights", stored.log_weight), ("islands", stored.island)):
        if column is not None and column.shape != (len(x),):
            raise UserError(f"{path}: expected {len(x)} {name}, found {column.shape}")
    return stored._replace(x=x.astype(np.float32))
