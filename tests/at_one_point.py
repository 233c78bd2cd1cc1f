"""Estimates of the asymmetric mixture's score at one point, and the closed form."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cases import ESTIMATORS, asymmetric
from demx.draws import estimate_batch
from demx.targets.gaussian_mixture import GaussianMixture

X = jnp.array([1.0, 0.5])
VARIANCE = jnp.asarray(0.8)


def posterior(target) -> GaussianMixture:
    """p(x_0 | x_t = X) of a mixture is a mixture: weights by evidence, means pulled to X."""
    precision = target.scales**-2 + 1 / VARIANCE
    means = (target.means * target.scales**-2 + X[None] / VARIANCE) / precision
    smoothed = target.smoothed(VARIANCE)
    weights = jax.nn.softmax(smoothed.log_terms(X))
    return eqx.tree_at(
        lambda m: (m.means, m.scales, m.log_weights),
        target,
        (means, precision**-0.5, jnp.log(weights)),
    )


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def repeated(name, key, num_samples, repeats):
    """Independent estimates at one point, (repeats, 2), conditional on x_0 ~ p(x_0 | x_t)."""
    target, estimator = asymmetric(), ESTIMATORS[name]
    key_noise, key_origin = jax.random.split(key)
    origin = posterior(target).sample(key_origin, repeats)

    def one(args):
        key, x_0 = args
        noise = jax.random.normal(key, (2, num_samples))
        return estimator(noise, target, VARIANCE, X, x_0)

    keys = jax.random.split(key_noise, repeats)
    return jax.lax.map(one, (keys, origin), batch_size=256)


def batch(key, estimator, draws, target, variance, x):
    """Estimates at a batch of points with one pool."""
    key_pool, key_points = jax.random.split(key)
    keys, pool = jax.random.split(key_points, len(x)), draws.pool(key_pool, target.space)
    return estimate_batch(keys, pool, estimator, draws, target, variance, x, x)


def exact() -> np.ndarray:
    return np.asarray(jax.grad(asymmetric().smoothed(VARIANCE).log_density)(X))
