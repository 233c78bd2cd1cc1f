"""One table of everything registered, small enough to run each property on each case."""

import jax
import jax.numpy as jnp
import numpy as np

from demx.estimator import Jensen, LogSumExp, Mixed, Ratio
from demx.networks import directed, egnn, lean, mlp, relaxing
from demx.noise import Geometric, Linear, LinearSDE, VariancePreserving
from demx.space import Euclidean, MeanFree
from demx.targets.double_well import double_well, dw4
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture, gaussian_mixture, gmm40
from demx.targets.lennard_jones import lennard_jones, lj13, lj55
from demx.targets.many_well import many_well
from demx.wrappers import Clipped, Conditional, Richardson


def asymmetric() -> GaussianMixture:
    """Unequal weights, unequal and anisotropic scales, off-centre: catches a wrong sign."""
    return GaussianMixture(
        np.array([[2.0, -1.0], [-3.0, 0.5], [0.5, 4.0]]),
        np.array([[0.5, 0.8], [1.0, 0.4], [0.7, 0.6]]),
        np.array([0.6, 0.3, 0.1]),
    )


def banana(x):
    return 0.5 * x[0] ** 2 + 0.5 * (x[1] - x[0] ** 2) ** 2 + 0.1 * jnp.sin(x[2]) + x[2] ** 2


TARGETS = {
    "gmm40": gmm40(),
    "asymmetric": asymmetric(),
    "gaussian_mixture": gaussian_mixture(num_modes=5, dim=12),
    "dw4": dw4(),
    "double_well": double_well(num_particles=3, dim=3, a=0.3),
    "lj13": lj13(),
    "lj55": lj55(),
    "lennard_jones": lennard_jones(num_particles=4, dim=2, temperature=1.5, trap=0.3),
    "many_well": many_well(dim=8),
    "function": FunctionTarget(banana, Euclidean(3)),
}
PARTICLES = [name for name, t in TARGETS.items() if isinstance(t.space, MeanFree)]
MIXTURES = [name for name, t in TARGETS.items() if isinstance(t, GaussianMixture)]

NOISES = {
    "geometric": Geometric(0.1, 5.0),
    "linear": Linear(3.0),
    "variance_preserving": VariancePreserving(0.1, 8.0),
    "linear_sde": LinearSDE(lambda t: 0.5 + t, lambda t: 1.0 + 0.5 * t),
}

# estimators that converge to the exact score as K grows
CONSISTENT = {
    "log_sum_exp": LogSumExp(),
    "ratio": Ratio(),
    "mixed": Mixed(0.5),
    "conditional": Conditional(LogSumExp()),
    "richardson": Richardson(LogSumExp()),
    "clipped": Clipped(LogSumExp(), max_norm=1e6, max_sigmas=1e6),
}
ESTIMATORS = {**CONSISTENT, "jensen": Jensen()}


def networks(space, key):
    if isinstance(space, MeanFree):
        return {
            "egnn": egnn(space, key, width=16, depth=2),
            "lean": lean(space, key, width=16, depth=2, num_basis=8),
            "directed": directed(space, key, width=16, depth=2, vectors=4, num_basis=8),
            "relaxing": relaxing(space, key, width=16, depth=2, vectors=4, num_basis=8),
        }
    return {"mlp": mlp(space, key, width=16, depth=2, embedding=8)}


def shaken(network, key):
    """The same network with random parameters everywhere: a zero read-out tests nothing."""
    leaves, tree = jax.tree.flatten(network)
    keys = jax.random.split(key, len(leaves))
    moved = [
        leaf + 0.1 * jax.random.normal(k, leaf.shape) if isinstance(leaf, jax.Array) else leaf
        for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, moved)
