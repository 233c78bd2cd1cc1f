"""The noise behind a batch of score estimates, and the estimates of a whole batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from demx.estimator import BLOCK, Estimate, Estimator
from demx.space import Side, Space, side
from demx.types import Target

TOGETHER = 16  # points that share a window: differences of noise are made once for all of them
WEIGHTS = 1 << 18  # samples of all points that share a window: bounds memory, whatever K is
POOL = 1 << 15  # floats of the pool that a batch shares: cheap to draw, many blocks to choose from


class Draws(eqx.Module):
    """How the noise of a batch of estimates is made.

    num_samples: K. shared: the batch draws one pool of normals; every point takes a window of it,
    at a place and with signs of the coordinates by its own coins (some neighbours take the same
    window, from different sides: `_estimate_shared`). Its estimate keeps its law, the
    errors of different points are only weakly correlated, and a step draws one pool rather than
    B·K·d normals. antithetic: the second half of a block is minus the first.
    """

    num_samples: int
    shared: bool = True
    antithetic: bool = True

    def __check_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples: expected at least 1, got {self.num_samples}")

    @property
    def _fresh(self) -> int:
        """Independent normals in one block; the rest are their mirror images."""
        return (self.num_samples + 1) // 2 if self.antithetic else self.num_samples

    def _mirror(self, noise: Array) -> Array:
        if not self.antithetic:
            return noise
        return jnp.concatenate([noise, -noise], axis=-1)[..., : self.num_samples]

    def pool(self, key: PRNGKeyArray, space: Space) -> Array | None:
        """(*shape, P) normals of R^d, not yet projected; None if every point draws its own."""
        if not self.shared:
            return None
        size = jnp.zeros(space.shape).size
        count = max(self._fresh, min(64 * self._fresh, POOL // size))
        return jax.random.normal(key, (*space.shape, count))

    def window(self, key: PRNGKeyArray, pool: Array, space: Space) -> Array:
        """One point's (*shape, K) block out of the pool."""
        key_place, key_signs = jax.random.split(key)
        start = jax.random.randint(key_place, (), 0, pool.shape[-1] - self._fresh + 1)
        signs = jax.random.rademacher(key_signs, space.shape, pool.dtype)
        block = jax.lax.dynamic_slice_in_dim(pool, start, self._fresh, axis=-1)
        return self._mirror(space.project_columns(block * signs[..., None]))

    def block(self, key: PRNGKeyArray, space: Space) -> Array:
        """One point's (*shape, K) block of its own."""
        noise = jax.random.normal(key, (*space.shape, self._fresh))
        return self._mirror(space.project_columns(noise))


def estimate_batch(
    keys: Key[Array, " B"],
    pool: Float[Array, "..."] | None,
    estimator: Estimator,
    draws: Draws,
    target: Target,
    variance: Float[Array, " B"],
    x: Float[Array, "B ..."],
    x_0: Float[Array, "B ..."],
) -> Estimate:
    """Estimates at a batch of points: as many at a time as fit the cache, at least one.

    keys: one for each point. pool: of `draws.pool`, for a whole batch or many; None: own noise.
    Where target and estimator can, neighbours share a window of the pool (`_estimate_shared`).
    """
    space = target.space
    shared = getattr(estimator, "shared", None)
    several = _rows_together(x.shape[0], draws.num_samples) > 1
    if several and pool is not None and shared is not None and hasattr(target, "shaken"):
        return _estimate_shared(keys, pool, shared, draws, target, variance, x)

    def one(point):
        key, v, x_t, origin = point
        noise = draws.block(key, space) if pool is None else draws.window(key, pool, space)
        return estimator(noise, target, v, x_t, origin)

    # never all at once: XLA drops a loop of one turn, fuses across it, and is then twice as slow
    most = max(1, x.shape[0] // 2)
    # half a block: large points side by side gain nothing that their sums do not lose
    together = max(1, min(most, BLOCK // (2 * draws.num_samples * x[0].size)))
    return jax.lax.map(one, (keys, variance, x, x_0), batch_size=together)


def _rows_together(count: int, num_samples: int) -> int:
    """Points that share a window: a divisor of `count`, few where K is large, for the memory."""
    most = max(1, min(TOGETHER, WEIGHTS // num_samples))
    return max(d for d in range(1, most + 1) if count % d == 0)


def _estimate_shared(keys, pool, shared, draws: Draws, target: Target, variance, x) -> Estimate:
    """Estimates of neighbours by one window of the pool, each seen from a side of its own.

    S(x; g ε) = g S(g⁻¹ x; ε) for a symmetry g of the target: a point whose particles are renumbered
    and whose axes are exchanged and reflected by its own coins has noise of its own, all but for
    coordinates that meet themselves by chance. (For the few coordinates of a dimer they often do.)
    """
    count = x.shape[0]
    rows = _rows_together(count, draws.num_samples)

    def some(group):
        keys, v, x = group
        key_window, key_sides = jax.random.split(keys[0])
        noise = draws.window(key_window, pool, target.space)
        sides = jax.vmap(lambda key: side(key, target.space))(jax.random.split(key_sides, rows))
        found = shared(noise, target, v, jax.vmap(Side.turn)(sides, x))
        return found._replace(score=jax.vmap(Side.back)(sides, found.score))

    split = lambda a: a.reshape(count // rows, rows, *a.shape[1:])  # noqa: E731
    found = jax.lax.map(some, (split(keys), split(variance), split(x)))
    return jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), found)
