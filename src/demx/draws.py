"""The noise behind a batch of score estimates, and the estimates of a whole batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.estimator import BLOCK, Estimate, Estimator
from demx.space import Space
from demx.types import Target


class Draws(eqx.Module):
    """How the noise of a batch of estimates is made.

    num_samples: K. shared: one block of K for the whole batch instead of one a point; every
    point flips the signs of the coordinates by coins of its own, so its estimate keeps its law
    and the errors of different points are nearly uncorrelated, at the cost of d coins rather
    than K·d normals. antithetic: the second half of the block is minus the first.
    """

    num_samples: int
    shared: bool = True
    antithetic: bool = True

    def __check_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {self.num_samples}")

    def block(self, key: PRNGKeyArray, space: Space) -> Array:
        """(K, *shape) standard normals of R^d, not yet projected."""
        if not self.antithetic:
            return jax.random.normal(key, (self.num_samples, *space.shape))
        half = jax.random.normal(key, ((self.num_samples + 1) // 2, *space.shape))
        return jnp.concatenate([half, -half])[: self.num_samples]


def estimate_batch(
    key: PRNGKeyArray,
    estimator: Estimator,
    draws: Draws,
    target: Target,
    variance: Float[Array, " B"],
    x: Float[Array, "B ..."],
    x_0: Float[Array, "B ..."],
) -> Estimate:
    """Estimates at a batch of points: as many at a time as fit the cache, at least one."""
    space = target.space
    key_shared, key_points = jax.random.split(key)
    shared = draws.block(key_shared, space) if draws.shared else None

    def one(point):
        key_point, v, x_t, origin = point
        if shared is None:
            noise = space.project(draws.block(key_point, space))
        else:
            signs = jax.random.rademacher(key_point, space.shape, x_t.dtype)
            noise = space.project(shared * signs[None])
        return estimator(noise, target, v, x_t, origin)

    together = max(1, min(x.shape[0], BLOCK // (draws.num_samples * x[0].size)))
    points = (jax.random.split(key_points, x.shape[0]), variance, x, x_0)
    return jax.lax.map(one, points, batch_size=together)
