"""Reference sets: near-exact samples of a target, in two independent sets, with provenance.

`validation` is for choosing and watching, `test` for reporting. A file is one npz of plain arrays
(never pickles): the two sets as float32 and, as JSON text, where they come from, what vouches for
them, the floors of every metric, and a checksum.
"""

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from demx import __version__
from demx.beginning import identity
from demx.errors import UserError
from demx.evaluate.convergence import passes
from demx.evaluate.equilibrium import HEATING, Equilibrium, equilibrium_samples
from demx.machine import cache_directory
from demx.space import MeanFree
from demx.types import Target

SIZE = 10_000
DOMAIN = 0x7E57  # folded into the seed: reference draws never meet those of training
# of the spread: what coordinates are rounded to, far below any metric's resolution, for half a file
GRID = 2.0**-13


@dataclass(frozen=True)
class Reference:
    """validation, test: (n, *shape) float32. provenance: settings, diagnostics, floors."""

    validation: np.ndarray
    test: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every diagnostic of both sets is met (exact samples need none)."""
        sets = self.provenance["sets"]
        return all(all(found["passes"].values()) for found in sets.values())

    @property
    def invariant(self) -> bool:
        """Whether the energy does not see rotations, reflections and exchanges of particles."""
        return bool(self.provenance["invariant"])

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for a in (self.validation, self.test):
            digest.update(np.ascontiguousarray(a, "<f4").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        about = {**self.provenance, "sha256": self.checksum()}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.npz")
        try:
            np.savez_compressed(
                partial,
                validation=self.validation,
                test=self.test,
                provenance=np.array(json.dumps(about)),
            )
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def with_energies(self, target: Target) -> "Reference":
        """Remember the energies of the first samples: they tell one target from another."""
        first = [float(e) for e in _energies(target, self.test[:8])]
        return replace(self, provenance={**self.provenance, "first_energies": first})

    def with_floors(self, n: int, floors: dict[str, list[float]]) -> "Reference":
        known = {**self.provenance.get("floors", {}), str(n): floors}
        return replace(self, provenance={**self.provenance, "floors": known})


def check(reference: Reference, target: Target) -> Reference:
    """The same, if it is of this target: shape and the energies of its first samples agree."""
    shape = reference.test.shape[1:]
    if shape != target.space.shape:
        raise UserError(f"reference: expected samples of shape {target.space.shape}, found {shape}")
    known = reference.provenance.get("first_energies")
    if known and not np.allclose(
        _energies(target, reference.test[: len(known)]), known, 1e-3, 0.01
    ):
        raise UserError("reference: made for another energy than this target's; make it again")
    return reference


def load(path: Path) -> Reference:
    """A reference file, its checksum verified; nothing in it is executed."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            found = Reference(data["validation"], data["test"], json.loads(str(data["provenance"])))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a reference file ({error}); make it again") from error
    if found.checksum() != found.provenance.get("sha256"):
        raise UserError(f"{path}: checksum differs, the file is damaged; make it again")
    return found


def make(
    target: Target,
    *,
    seed: int = 0,
    n: int = SIZE,
    settings: Equilibrium = Equilibrium(),  # noqa: B008
    report=lambda text: None,
    start: np.ndarray | None = None,
) -> Reference:
    """Two independent sets of n: exact where the target can draw, else by tempered chains.

    start: points (rows, *shape) that these begin from.
    """
    sets, about, invariant = {}, {}, None
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), DOMAIN))
    for name, key in zip(("validation", "test"), keys, strict=True):
        if hasattr(target, "sample"):
            x, found, calls = np.asarray(target.sample(key, n)), {}, 0
            about[name] = {"kind": "exact", "passes": {}}
        else:
            report(f"{name} set")
            x, _, found, calls = equilibrium_samples(key, target, n, settings, report, start)
            about[name] = {"kind": "parallel tempering", **found, "passes": passes(found)}
        if invariant is None:
            invariant = is_invariant(target, x)
            grid = GRID * 2.0 ** np.floor(np.log2(np.sqrt(np.mean(x**2)) + 1e-30))
        if invariant:
            rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
            x = symmetrise(rng, x, target.space.several)
        about[name]["energy_calls"] = calls
        sets[name] = (np.round(x / grid) * grid).astype(np.float32)
    provenance = {
        "demx": __version__,
        "n": n,
        "settings": dict(vars(settings)),
        "seed": seed,
        "rounded_to": float(grid),
        "invariant": invariant,
        "sets": about,
    }
    if not hasattr(target, "sample"):
        provenance["start"] = _started(settings, start)
    return Reference(sets["validation"], sets["test"], provenance).with_energies(target)


def _started(settings: Equilibrium, start: np.ndarray | None) -> dict[str, Any]:
    """What the compact and the dispersed starts were, whose agreement is asked for."""
    if start is None:
        wide = (f"a normal of {factor} scales, relaxed" for factor in (0.5, 3))
        return dict(zip(("compact", "dispersed"), wide, strict=True))
    heated = f"given points after {HEATING} moves at β = {settings.beta_min:.3g}"
    return {"compact": "given points", "dispersed": heated, "points": identity(start)}


def _energies(target: Target, x: np.ndarray) -> np.ndarray:
    return -np.asarray(jax.jit(jax.vmap(target.log_density))(x.astype(np.float32)))


def symmetrise(
    rng: np.random.Generator, x: np.ndarray, species: tuple[int, ...] | None = None
) -> np.ndarray:
    """Each cluster rotated or reflected and its particles renumbered at random (n, p, dim).

    species: of the particles; only equal ones change places.
    """
    count, particles, dim = x.shape
    q, r = np.linalg.qr(rng.normal(size=(count, dim, dim)))
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]  # uniform over O(dim)
    order = np.tile(np.arange(particles), (count, 1))
    kinds = np.zeros(particles, int) if species is None else np.array(species)
    for kind in np.unique(kinds):
        order[:, kinds == kind] = rng.permuted(order[:, kinds == kind], axis=1)
    return np.take_along_axis(x, order[..., None], axis=1) @ q


def is_invariant(target: Target, x: np.ndarray) -> bool:
    """Whether samples keep their energies when rotated, reflected and renumbered among equals.

    Looked at where the density is: far away, in huge energies, a weak field would not show.
    """
    if not isinstance(target.space, MeanFree):
        return False
    x = x[:64].astype(float)
    moved = symmetrise(np.random.default_rng(0), x, target.space.several)
    before, after = _energies(target, x), _energies(target, moved)
    close = np.abs(before - after) <= 1e-2 + 1e-4 * np.abs(before)
    return bool(np.isfinite(before).all() and close.all())


def cache_file(name: str, settings: dict[str, Any]) -> Path:
    """Where the reference of a named target with settings of its own is kept."""
    text = json.dumps(settings, sort_keys=True)
    tail = f"-{hashlib.sha256(text.encode()).hexdigest()[:10]}" if settings else ""
    return cache_directory() / "references" / f"{name}{tail}.npz"


def shipped_file(name: str) -> Path | None:
    """The set that comes with demx, for the benchmark targets with their own settings."""
    file = resources.files("demx.references") / f"{name}.npz"
    return Path(str(file)) if file.is_file() else None


def find(name: str, settings: dict[str, Any], target: Target) -> Reference | None:
    """The shipped set, the user's own, or exact samples made on the spot; otherwise None."""
    shipped = None if settings else shipped_file(name)
    if shipped is not None:
        return check(load(shipped), target)
    cached = cache_file(name, settings)
    if cached.exists():
        return check(load(cached), target)
    if not hasattr(target, "sample"):
        return None
    return make(target, n=min(SIZE, max(200, 20_000_000 // target.space.dof)))
