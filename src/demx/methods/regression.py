"""What the inner loop regresses on: points x_t = x_0 + σ_t ε, and the score that is right there.

No network has a part in it, so the batches of many inner steps are made first, by a program of
their own: compiling that and the network's takes less memory than compiling one of both.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from demx.buffer import Buffer, Contents
from demx.devices import chunk_rows, map_chunks
from demx.draws import Draws, estimate_batch
from demx.estimator import Estimator
from demx.methods.strays import Strays
from demx.methods.walk import Walk
from demx.noise import Noise
from demx.space import normal
from demx.targets.black_box import BlackBox
from demx.types import Target
from demx.wrappers import Clipped

TOGETHER = 256  # points whose targets are made together
MOST = 2**23  # numbers in the batches that are made at once


class Batch(NamedTuple):
    """Fit s_θ(t, x_t) to `score` with `weight`; a weight of 0 leaves a point out.

    ess, clipped, bad: of the estimate behind `score`.
    """

    t: Float[Array, "*B"]
    x_t: Array  # (*B, *shape of the space)
    score: Array  # as x_t
    weight: Float[Array, "*B"]
    ess: Float[Array, "*B"]
    clipped: Float[Array, "*B"]
    bad: Int[Array, "*B"]


class Regression(eqx.Module):
    """size points a batch; prior_fraction of the x_0 are drawn from the prior, not the buffer.

    weight: of a point, by the variance of its noise. Targets are estimates S_K, or come from a
    `walk` that moves x_0 on the posterior. `strays` are points farther from x_0 than their noise
    level says.
    """

    target: Target
    noise: Noise
    estimator: Estimator
    draws: Draws
    buffer: Buffer
    size: int
    prior_fraction: float
    prior: Callable[[PRNGKeyArray, int], Array]
    weight: Callable[[Array], Array]
    strays: Strays | None = None
    walk: Walk | None = None

    def at(
        self,
        key: PRNGKeyArray,
        place: Int[Array, ""],
        x_0: Float[Array, "rows ..."],
        pool: Array | None,
        walk_step: Array,
    ) -> Batch:
        """t uniform (stratified), x_t = x_0 + σ_t ε, S_K(x_t, t) for a chunk of the batch.

        x_0: points of the buffer. place: the number that the first of them has in the batch.
        """
        rows, space = x_0.shape[0], self.target.space
        key_prior, key_coin, key_time, key_noise, key_score, key_stray = jax.random.split(key, 6)
        shape = (-1,) + (1,) * len(space.shape)
        if self.prior_fraction > 0:
            coin = jax.random.bernoulli(key_coin, self.prior_fraction, (rows,))
            coin = coin.reshape(shape)
            x_0 = jnp.where(coin, self.prior(key_prior, rows), x_0)
        # one time in each of B equal intervals: uniform, with less noise between batches
        numbers = (place + jnp.arange(rows)).astype(x_0.dtype)
        t = (numbers + jax.random.uniform(key_time, (rows,))) / self.size
        v = jax.vmap(self.noise.variance)(t)
        spread = jnp.sqrt(v)
        if self.strays is not None:
            factor = self.strays.factors(key_stray, rows)
            spread = spread * factor
        x_t = x_0 + spread.reshape(shape) * normal(key_noise, space, (rows,))
        if self.strays is not None:
            x_0 = self.strays.origins(x_0, factor, v)
        if self.prior_fraction > 0:
            # a point of the prior is no draw of p(x_0 | x_t): there is nothing to keep
            x_0 = jnp.where(coin, jnp.nan, x_0)
        if self.walk is None:
            keys = jax.random.split(key_score, rows)
            estimate = estimate_batch(
                keys, pool, self.estimator, self.draws, self.target, v, x_t, x_0
            )
        else:
            estimate = self.walk(key_score, self.target, v, x_t, x_0, walk_step)
            if isinstance(self.estimator, Clipped):
                clip = lambda e, v: self.estimator.clip(e, space, v)  # noqa: E731
                estimate = jax.vmap(clip)(estimate, v)
        usable = jnp.all(jnp.isfinite(estimate.score), axis=tuple(range(1, x_t.ndim)))
        score = jnp.where(usable.reshape(shape), estimate.score, 0.0)
        weights = jax.vmap(self.weight)(v) * usable.astype(v.dtype)
        return Batch(t, x_t, score, weights, estimate.ess, estimate.clipped, estimate.bad)

    def batch(
        self,
        key: PRNGKeyArray,
        contents: Contents,
        walk_step: Array,
    ) -> Batch:
        """One batch, chunk by chunk: many points side by side, which walk or share their noise."""
        key_pool, key_points, key_chunks = jax.random.split(key, 3)
        x_0 = self.buffer.sample(key_points, contents, self.size)
        pool = self.draws.pool(key_pool, self.target.space) if self.walk is None else None
        rows = chunk_rows(self.size, TOGETHER)
        chunks = (
            jax.random.split(key_chunks, self.size // rows),
            jnp.arange(0, self.size, rows),
            x_0.reshape(-1, rows, *x_0.shape[1:]),
        )
        made = map_chunks(lambda tree, c: self.at(*c, *tree), (pool, walk_step), chunks)
        return jax.tree.map(lambda a: a.reshape(self.size, *a.shape[2:]), made)

    def batches(
        self,
        keys: Key[Array, " steps"],
        contents: Contents,
        walk_step: Array,
    ) -> tuple[Batch, Array]:
        """One batch for each key, stacked; and the step of the walks, adapted after each."""

        def one(walk_step, key):
            batch = self.batch(key, contents, walk_step)
            if self.walk is not None:
                usable = batch.weight > 0
                mean = jnp.sum(batch.ess, where=usable) / jnp.sum(usable).astype(batch.ess.dtype)
                walk_step = self.walk.adapted(walk_step, jnp.nan_to_num(mean))
            return walk_step, batch

        walk_step, made = jax.lax.scan(one, walk_step, keys)
        return made, walk_step

    @property
    def calls(self) -> int:
        """Energy calls of one batch."""
        if self.walk is not None:
            return self.size * self.walk.calls
        return self.size * self.estimator.cost * self.draws.num_samples

    def at_once(self, steps: int) -> int:
        """Batches that are made together: the largest divisor of `steps` that memory allows.

        One, if the energy is a function on the host: only by its calls can a loop be stopped in its
        midst, and its progress be told, so they have to be spread over the whole of it.
        """
        if isinstance(self.target, BlackBox):
            return 1
        of_a_point = 2 * math.prod(self.target.space.shape) + 5
        most = max(1, MOST // (self.size * of_a_point))
        return max(d for d in range(1, steps + 1) if steps % d == 0 and d <= most)
