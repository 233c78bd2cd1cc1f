"""A pair potential of your own: write φ(r²) once, the fused path does the rest.

demx fit examples/pair_potential.py:cluster --budget 2m
"""

import jax.numpy as jnp

import demx
from demx.space import MeanFree
from demx.targets.pair import PairPotential


def morse(r2):
    """D (1 - exp(-a (r - 1)))² - D."""
    return 2.0 * (1 - jnp.exp(-3.0 * (jnp.sqrt(r2) - 1))) ** 2 - 2.0


cluster = PairPotential(MeanFree(num_particles=7, dim=3), morse, trap=1.0)

if __name__ == "__main__":
    sampler = demx.fit(cluster, budget="2m")
    print(sampler.evaluate(200).metrics["energy_median"])
