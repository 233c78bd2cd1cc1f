"""Samples in files: npz, npy, and extxyz of one kind of cluster."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demx.errors import UserError
from demx.types import Samples


class Stored(NamedTuple):
    """x: (n, *shape). log_weight, island (see `demx.types.Samples`): (n,) if the file has them."""

    x: np.ndarray
    log_weight: np.ndarray | None = None
    island: np.ndarray | None = None


def read(path: Path) -> Stored:
    """npz with an array 'x' (and perhaps 'log_weight'), npy, or extxyz; nothing is executed."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of samples (npz, npy, extxyz), found none")
    if path.suffix in (".xyz", ".extxyz"):
        return _read_extxyz(path)
    try:
        with path.open("rb") as file:
            data = np.load(file, allow_pickle=False)
            if isinstance(data, np.ndarray):
                return Stored(data)
            found = {name: data[name] for name in ("x", "log_weight", "island") if name in data}
            names = ", ".join(data)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path}: expected an npz, npy or extxyz file of samples ({error})"
        ) from error
    if "x" not in found:
        raise UserError(f"{path}: expected an array named 'x', found {names}")
    return Stored(**found)


def write(path: Path, drawn: Samples, energy: np.ndarray) -> None:
    """npz with x, energy, and what else is known of the samples; directories are made."""
    arrays = {"x": np.asarray(drawn.x), "energy": energy}
    for name in ("log_weight", "log_prob", "island"):
        if getattr(drawn, name) is not None:
            arrays[name] = np.asarray(getattr(drawn, name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error})") from error


def _read_extxyz(path: Path) -> Stored:
    try:
        from ase.io import iread
    except ImportError as error:
        raise UserError(
            f"{path}: reading extxyz needs ASE; pip install 'demx[ase]', or give an npz"
        ) from error
    try:
        frames = list(iread(str(path), format="extxyz"))
    except Exception as error:  # ASE raises many kinds
        raise UserError(f"{path}: not a readable extxyz file ({error})") from error
    counts = {len(frame) for frame in frames}
    if len(counts) != 1:
        raise UserError(f"{path}: expected frames of one size, found {sorted(counts)} atoms")
    weights = [frame.info.get("log_weight") for frame in frames]
    stored = None if any(w is None for w in weights) else np.array(weights, np.float32)
    return Stored(np.stack([frame.positions for frame in frames]).astype(np.float32), stored)


def fitting(stored: Stored, shape: tuple[int, ...], path: Path | str) -> Stored:
    """The samples in a target's shape: trailing flat axes and a z of zeros are understood."""
    x = np.asarray(stored.x)
    if not np.issubdtype(x.dtype, np.floating):
        raise UserError(f"{path}: expected floating-point samples, found {x.dtype}")
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
    if stored.log_weight is not None and stored.log_weight.shape != (len(x),):
        raise UserError(f"{path}: expected {len(x)} weights, found {stored.log_weight.shape}")
    return stored._replace(x=x.astype(np.float32))
