"""Points to begin from: a user's (`warm_start`), or those that a target knows (`target.start`)."""

import hashlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from demx.energy import evaluate
from demx.errors import UserError
from demx.methods import METHODS
from demx.samples import Stored, fitting
from demx.space import MeanFree
from demx.types import Target

SHOWN = 10  # rows that an error names


def beginning(
    method: str, target: Target, warm_start: ArrayLike | Stored | None
) -> np.ndarray | None:
    """Points (n, *shape) for a method to begin from; None: it begins as it does without any.

    Chains that are given none begin where the target says.
    """
    use = METHODS[method].warm_start
    if warm_start is None:
        return known(target) if use == "chains" else None
    if not use:
        able = ", ".join(name for name, entry in METHODS.items() if entry.warm_start)
        raise UserError(
            f"warm start: method {method} has no use for points to begin from; those that have "
            f"are {able}"
        )
    return points(warm_start, target, "warm start")


def known(target: Target) -> np.ndarray | None:
    """The points that a target says chains may begin from."""
    start = getattr(target, "start", None)
    return None if start is None else points(start, target, "target.start")


def points(given: ArrayLike | Stored | str | Path, target: Target, name: str) -> np.ndarray:
    """The points as (n, *shape) in single precision, or an error that calls them by name."""
    if isinstance(given, str | Path):
        raise UserError(
            f"{name}: expected an array of points, got the name of a file, '{given}'; read it with "
            f"demx.samples.read(Path('{given}')), or give it to the command as --warm-start"
        )
    stored = given if isinstance(given, Stored) else Stored(np.asarray(given, np.float32))
    x = fitting(stored, target, name).x
    if not np.isfinite(x).all():
        raise UserError(f"{name}: expected finite numbers, found some that are not")
    return x


def identity(x: np.ndarray) -> list[Any]:
    """Shape and checksum: what a configuration says of points."""
    return [list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()]


def check_energies(target: Target, x: np.ndarray) -> np.ndarray:
    """The energies of points, len(x) calls; stops unless all are finite, with finite gradients."""
    found = eqx.filter_jit(evaluate)(target, target.space.project(jnp.asarray(x, float)))
    wrong = np.flatnonzero(np.asarray(found.bad | ~jnp.isfinite(found.log_density)))
    if len(wrong):
        rows = ", ".join(map(str, wrong[:SHOWN])) + (", …" if len(wrong) > SHOWN else "")
        raise UserError(
            f"start: expected points of finite energy, found {len(wrong)} of {len(x)} without "
            f"(rows {rows}, counted from 0); take them out, or see that units and the order of "
            "the coordinates are the target's"
        )
    return -np.asarray(found.log_density)


def width(target: Target, x: np.ndarray) -> float | None:
    """Root mean square of a degree of freedom of particles; of R^d points do not tell it."""
    if not isinstance(target.space, MeanFree):
        return None
    centred = np.asarray(target.space.project(jnp.asarray(x, float)), float)
    found = float(np.sqrt(np.sum(centred**2) / (len(x) * target.space.dof)))
    return float(f"{found:.2g}") or None
