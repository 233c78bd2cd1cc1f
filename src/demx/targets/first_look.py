"""What is asked of a black box before anything is trained: few calls, since each may be dear.

At a few points, does the gradient say what differences of the energy say along a direction, and of
particles, do images (turned, reflected, equals exchanged) have the same energy?
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from demx.space import MeanFree, Space, image, normal
from demx.targets.black_box import BlackBox
from demx.types import Target

POINTS, IMAGES = 2, 2
WIDTHS = (-2e-3, -1e-3, 1e-3, 2e-3)  # of the scale; a wide and a narrow difference vouch for both
AGREE = 0.1  # of the larger one: derivatives that differ by less are the same
SHAKEN = 0.02  # of its width: a known structure may be a minimum, where slopes are 0
COARSEST = 1e-2  # kT between neighbouring energies in single precision that is not worth a word


def first_look(target: BlackBox, scale: float) -> int:
    """Stop if gradient or symmetry are not those of the energy; returns the energy calls it took.

    Points without a finite energy, and differences that depend on their width, say nothing.
    Of a gradient by finite differences only the symmetry is looked at.
    """
    before = target.points
    normals = normal(jax.random.key(3), target.space, (POINTS,))
    points = np.asarray(near(target, scale, normals), float)
    widths = () if target.host.step else WIDTHS
    found = [_along(target, x, scale, widths, i) for i, x in enumerate(points)]
    if isinstance(target.space, MeanFree):
        _compare_images(target, points, [energy for energy, _ in found])
    for _, slopes in found:
        _compare_slopes(*slopes)
    return target.points - before


def near(target: Target, scale: float, points: Array) -> Array:
    """Normal points made as wide as the target, or put near a structure that it knows: a
    calculator may have no energy for atoms anywhere."""
    start = getattr(target, "start", None)
    if start is None:
        return scale * points
    known = jnp.asarray(start, float)[:1]
    return known + SHAKEN * jnp.sqrt(jnp.mean(known**2)) * points


def _direction(space: Space, number: int) -> np.ndarray:
    drawn = np.asarray(normal(jax.random.key(4 + number), space), float)
    return drawn / np.linalg.norm(drawn)


def _along(
    target: BlackBox, x: np.ndarray, scale: float, widths: tuple[float, ...], number: int
) -> tuple[float, tuple[float, float, float]]:
    """E(x), and its slope along a direction: as given, and by a wide and a narrow difference."""
    energy, gradient = target.host(x)
    direction = _direction(target.space, number)
    moved = np.array([x + scale * width * direction for width in widths])
    if not len(moved):
        return float(energy), (np.nan,) * 3
    lowest, low, high, highest = target.host(moved)[0]
    with np.errstate(all="ignore"):
        wide = (highest - lowest) / (scale * (WIDTHS[3] - WIDTHS[0]))
        narrow = (high - low) / (scale * (WIDTHS[2] - WIDTHS[1]))
        return float(energy), (float(np.sum(gradient * direction)), float(wide), float(narrow))


def _compare_slopes(given: float, wide: float, narrow: float) -> None:
    size = max(abs(wide), abs(narrow))
    if not np.isfinite([given, wide, narrow]).all() or abs(wide - narrow) > 0.5 * AGREE * size:
        return
    if abs(given - narrow) <= AGREE * max(size, abs(given)):
        return
    force = abs(given + narrow) <= AGREE * max(size, abs(given))
    raise ValueError(
        f"black box: expected the gradient of the energy, whose slope along a direction is "
        f"{narrow:.5g} by differences of the energy, got {given:.5g}"
        + (
            ": this is the force; return its negative"
            if force
            else "; see that energy and gradient are in the same units (kT, and kT per unit of x)"
        )
    )


def _compare_images(target: BlackBox, points: np.ndarray, energies: list[float]) -> None:
    keys = jax.random.split(jax.random.key(5), IMAGES)
    for key, x, here in zip(keys, points, energies, strict=True):
        turned = image(key, target.space, jnp.asarray(x, float))
        there = float(target.host(np.asarray(turned, float))[0])
        # rounding: energies of particles that overlap are sums of huge terms
        if np.isfinite([here, there]).all() and abs(here - there) > 1e-2 + 1e-3 * abs(here):
            raise ValueError(
                "black box: expected the same energy when particles are turned, reflected or "
                f"exchanged, got {here:.5g} and {there:.5g}; name the species of particles that "
                "differ, species=(0, 0, 1, …), or take one flat vector, dim=…"
            )


def warn_of_rounding(target: BlackBox, energy: float) -> None:
    """Where an energy such as samples will have is too large to differ by little."""
    spacing = float(np.spacing(np.float32(abs(energy))))
    if spacing > COARSEST:
        warnings.warn(
            f"black box: energies are about {energy:.5g} kT, and in single precision differ by "
            f"{spacing:.2g} kT or not at all; if most of it is the same everywhere, take that off: "
            f"black_box(…, zero={energy + target.zero:.3g})",
            stacklevel=2,
        )
