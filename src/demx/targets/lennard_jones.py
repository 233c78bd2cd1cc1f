"""Lennard-Jones clusters in a harmonic trap: LJ-13 and LJ-55 of the paper."""

from demx.space import MeanFree
from demx.targets.pair import PairPotential


def lennard_jones(
    *,
    num_particles: int,
    dim: int = 3,
    epsilon: float = 2.0,
    attraction: float = 2.0,
    r_m: float = 1.0,
    trap: float = 1.0,
    temperature: float = 1.0,
) -> PairPotential:
    """E = ε Σ_{i<j} [(r_m/r)¹² - a (r_m/r)⁶] + (k/2) Σ_i |x_i - x̄|², log p̃ = -E/τ.

    The defaults are the energy behind the published numbers: each unordered pair counts
    twice (ε = 2), the well is at r_m with depth ε (a = 2), the trap has k = 1. The paper's text,
    its sign set right, is ε = 1, a = 1, k = 0.5.
    """

    if not (r_m > 0 and trap > 0):
        raise ValueError(
            f"r_m, trap: expected positive numbers (without a trap the gas has no normalisable "
            f"density), got {r_m} and {trap}"
        )

    def phi(r2):
        inverse6 = (r_m**2 / r2) ** 3
        return epsilon * inverse6 * (inverse6 - attraction)

    # at r = 0.55 r_m the energy of one pair is about 1300 ε: exp(-E) is 0 in float32
    core = 0.3 * r_m**2
    return PairPotential(MeanFree(num_particles, dim), phi, trap, temperature, core)


def lj13() -> PairPotential:
    """13 Lennard-Jones particles in 3-D (paper, app. F.4.3)."""
    return lennard_jones(num_particles=13)


def lj55() -> PairPotential:
    """55 Lennard-Jones particles in 3-D (paper, app. F.4.3)."""
    return lennard_jones(num_particles=55)
