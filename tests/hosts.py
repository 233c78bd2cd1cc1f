"""Energies on the host that several tests ask."""

import numpy as np


def bowl(x):
    """Off the origin, and not quadratic: catches a wrong sign and a wrong point."""
    return 0.5 * np.sum((x - 1.0) ** 2) + 0.1 * np.sum(x**4), (x - 1.0) + 0.4 * x**3


def bowls(x):
    axes = tuple(range(1, x.ndim))
    return 0.5 * np.sum((x - 1) ** 2, axes) + 0.1 * np.sum(x**4, axes), (x - 1) + 0.4 * x**3


SMALL = {
    "draws": {"num_samples": 8},
    "training": {"outer_steps": 2, "inner_steps": 2, "batch_size": 6, "new_samples": 5},
    "network": {"width": 4, "depth": 1, "embedding": 4},
    "grid": {"num_steps": 3},
    "moves": {"num_steps": 2, "num_leapfrog": 2},
    "evaluation": {"every": 2, "n": 20},
}
CHAINS = {"sampler": {"num_chains": 4, "length": 4, "outer_steps": 2, "thin": 2, "relax_steps": 2}}
