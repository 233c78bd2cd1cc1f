"""Particles whose pair distances sit in a double well: DW-4 of the paper."""

import jax.numpy as jnp

from demx.space import MeanFree
from demx.targets.pair import PairPotential


def double_well(
    *,
    num_particles: int,
    dim: int = 2,
    a: float = 0.0,
    b: float = -4.0,
    c: float = 0.9,
    offset: float = 4.0,
    temperature: float = 1.0,
) -> PairPotential:
    """E = Σ_{i<j} a (d_ij - d_0) + b (d_ij - d_0)² + c (d_ij - d_0)⁴, log p̃ = -E/τ.

    Once per unordered pair, which is the paper's ½ Σ_{ij}; the paper does not name d_0 (`offset`).
    """

    def phi(r2):
        u = jnp.sqrt(r2) - offset
        return a * u + (b + c * u**2) * u**2

    return PairPotential(MeanFree(num_particles, dim), phi, 0.0, temperature)


def dw4() -> PairPotential:
    """Four particles in 2-D (paper, app. F.4.2)."""
    return double_well(num_particles=4)
