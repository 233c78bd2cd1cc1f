"""The matching engine: an outer loop fills a buffer, an inner loop regresses (algorithm 1).

`collect(key, model)` gives the points that the outer loop puts into the buffer; it is all that
iDEM and pDEM differ in. One outer loop is `fill` and `descend`, two compiled functions: what
compiling the first took can be given back before the second. The inner loop is one scan.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.buffer import Buffer, Contents
from demx.devices import chunk_rows, map_chunks, sum_chunks
from demx.draws import Draws, estimate_batch
from demx.energy import evaluate
from demx.estimator import Estimate, Estimator
from demx.methods.moves import Moves
from demx.methods.strays import Strays
from demx.methods.training import Training
from demx.methods.walk import Walk
from demx.model import ScoreModel, average, flatten
from demx.noise import Noise
from demx.space import normal
from demx.types import Info, Target
from demx.wrappers import Clipped

TOGETHER = 256  # points whose targets are made together


class Regression(NamedTuple):
    """Fit s_θ(t, x_t) to `score` with `weight`; a weight of 0 leaves a point out."""

    t: Float[Array, " B"]
    x_t: Float[Array, "B ..."]
    score: Float[Array, "B ..."]
    weight: Float[Array, " B"]
    estimate: Estimate


class Seen(NamedTuple):
    """Sums over a batch: loss, points with a target, ess of those, clipped shares, bad energies."""

    loss: Float[Array, "*steps"]
    usable: Int[Array, "*steps"]
    ess: Float[Array, "*steps"]
    clipped: Float[Array, "*steps"]
    bad: Int[Array, "*steps"]


class Filled(NamedTuple):
    """The buffer after an outer loop's new points, and what happened to them on the way."""

    contents: Contents
    lost: Int[Array, ""]
    step_size: Float[Array, ""]
    acceptance: Float[Array, ""] | None


class State(eqx.Module):
    """All that the next step needs: parameters, their average, optimiser, buffer, step count.

    step_size: of the Metropolis moves on new points, walk_step: of the walks; 0 without them.
    """

    model: ScoreModel
    average: ScoreModel
    optimiser: optax.OptState
    contents: Contents
    step: Int[Array, ""]
    step_size: Float[Array, ""]
    walk_step: Float[Array, ""]


class Matching(eqx.Module):
    """The engine. `collect` and `prior` come from the method; the rest are values."""

    target: Target
    noise: Noise
    estimator: Estimator
    draws: Draws
    buffer: Buffer
    training: Training
    collect: Callable[[PRNGKeyArray, ScoreModel], Array]
    prior: Callable[[PRNGKeyArray, int], Array]
    collect_calls: int = 0
    moves: Moves | None = None
    strays: Strays | None = None
    walk: Walk | None = None

    def init(self, model: ScoreModel, contents: Contents | None = None) -> State:
        flat, model_of = flatten(model)
        contents = self.buffer.init(self.target.space) if contents is None else contents
        opt_state = self.training.transformation(model_of).init(flat)
        step_size = jnp.asarray(0.0 if self.moves is None else self.moves.step_size, float)
        walk_step = jnp.asarray(0.0 if self.walk is None else self.walk.step, float)
        return State(model, model, opt_state, contents, jnp.zeros((), int), step_size, walk_step)

    def fill(self, key: PRNGKeyArray, state: State) -> Filled:
        """New points into the buffer; one not finite is counted and drawn from the prior."""
        key_points, key_fallback, key_moves = jax.random.split(key, 3)
        points = self.collect(key_points, state.average)
        finite = jnp.all(jnp.isfinite(points), axis=tuple(range(1, points.ndim)))
        fallback = self.prior(key_fallback, points.shape[0])
        keep = finite.reshape((-1,) + (1,) * (points.ndim - 1))
        points = jnp.where(keep, points, fallback)
        lost = jnp.sum(~finite)
        log_density = jnp.zeros(points.shape[0], points.dtype)
        step_size, acceptance = state.step_size, None
        if self.moves is not None:
            moved = self.moves(key_moves, self.target, points, step_size)
            step_size, acceptance = moved.step_size, moved.acceptance
            # what the moves could not bring into the support is counted, and stays as it was
            inside = jnp.isfinite(moved.log_density)
            points = jnp.where(inside.reshape(keep.shape), moved.points, points)
            log_density = moved.log_density
            lost = lost + jnp.sum(~inside)
        elif self.buffer.needs_energy:
            log_density, _, bad = evaluate(self.target, points)
            lost = lost + jnp.sum(bad)
        contents = self.buffer.add(state.contents, points, log_density)
        return Filled(contents, lost, step_size, acceptance)

    def regress(
        self,
        key: PRNGKeyArray,
        place: Int[Array, ""],
        x_0: Float[Array, "rows ..."],
        pool: Array | None,
        walk_step: Array,
        weight: Callable[[Array], Array],
    ) -> Regression:
        """t uniform (stratified), x_t = x_0 + σ_t ε, S_K(x_t, t) for a chunk of the batch.

        x_0: points of the buffer. place: the number that the first of them has in the batch.
        """
        rows = x_0.shape[0]
        size, space = self.training.batch_size, self.target.space
        key_prior, key_coin, key_time, key_noise, key_score, key_stray = jax.random.split(key, 6)
        shape = (-1,) + (1,) * len(space.shape)
        if self.training.prior_fraction > 0:
            coin = jax.random.bernoulli(key_coin, self.training.prior_fraction, (rows,))
            coin = coin.reshape(shape)
            x_0 = jnp.where(coin, self.prior(key_prior, rows), x_0)
        # one time in each of B equal intervals: uniform, with less noise between batches
        numbers = (place + jnp.arange(rows)).astype(x_0.dtype)
        t = (numbers + jax.random.uniform(key_time, (rows,))) / size
        v = jax.vmap(self.noise.variance)(t)
        spread = jnp.sqrt(v)
        if self.strays is not None:
            factor = self.strays.factors(key_stray, rows)
            spread = spread * factor
        x_t = x_0 + spread.reshape(shape) * normal(key_noise, space, (rows,))
        if self.strays is not None:
            x_0 = self.strays.origins(x_0, factor, v)
        if self.training.prior_fraction > 0:
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
        axes = tuple(range(1, x_t.ndim))
        usable = jnp.all(jnp.isfinite(estimate.score), axis=axes)
        keep = usable.reshape(shape)
        score = jnp.where(keep, estimate.score, 0.0)
        weights = jax.vmap(weight)(v) * usable.astype(v.dtype)
        return Regression(t, x_t, score, weights, estimate)

    def gradient(
        self, key, flat: Array, model_of, contents: Contents, walk_step: Array
    ) -> tuple[Array, Seen]:
        """Gradient of the mean loss over one batch, and what was seen on the way.

        flat: all parameters in one vector, of which `model_of` makes a model. Chunk by chunk:
        neither the network's activations nor the K samples leave the cache.
        """
        key_pool, key_points, key_chunks = jax.random.split(key, 3)
        size, model = self.training.batch_size, model_of(flat)
        rows = chunk_rows(size, model.rows_in_cache)
        x_0 = self.buffer.sample(key_points, contents, size)

        def split(a: Array, rows: int) -> Array:
            return a.reshape(-1, rows, *a.shape[1:])

        def regress(tree, chunk) -> Regression:
            return self.regress(*chunk, *tree, model.precondition.weight)

        def chunks(rows: int):
            keys = jax.random.split(key_chunks, size // rows)
            return keys, jnp.arange(0, size, rows), split(x_0, rows)

        def loss(flat, batch: Regression) -> Array:
            error = jax.vmap(model_of(flat))(batch.t, batch.x_t) - batch.score
            squared = jnp.sum(error**2, axis=tuple(range(1, error.ndim)))
            return jnp.sum(batch.weight * squared)

        def slopes(flat, batch: Regression) -> tuple[Array, Seen]:
            value, slope = jax.value_and_grad(loss)(flat, batch)
            usable, estimate = batch.weight > 0, batch.estimate
            return slope, Seen(
                value,
                jnp.sum(usable),
                jnp.sum(estimate.ess, where=usable),
                jnp.sum(estimate.clipped),
                jnp.sum(estimate.bad),
            )

        pool = self.draws.pool(key_pool, self.target.space) if self.walk is None else None
        # many points side by side, which walk or share their noise; few in cache for the network
        wide = chunk_rows(size, TOGETHER)
        batch = map_chunks(regress, (pool, walk_step), chunks(wide))
        batch = jax.tree.map(lambda a: split(a.reshape(size, *a.shape[2:]), rows), batch)
        slope, seen = sum_chunks(slopes, flat, batch)
        # over the usable points; without any it is nan and the update is not made
        usable = seen.usable.astype(seen.loss.dtype)
        share = 1 / (self.target.space.dof * jnp.where(usable > 0, usable, jnp.nan))
        return share * slope, seen._replace(
            loss=share * seen.loss, ess=seen.ess / usable, clipped=seen.clipped / size
        )

    def descend(self, key: PRNGKeyArray, state: State, filled: Filled) -> tuple[State, Info]:
        """The inner loop on a buffer that was filled."""
        contents = filled.contents
        flat, model_of = flatten(state.model)
        optimiser = self.training.transformation(model_of)
        mean, _ = flatten(state.average)

        def inner(carry, key):
            flat, mean, opt_state, step, walk_step = carry
            gradient, seen = self.gradient(key, flat, model_of, contents, walk_step)
            if self.walk is not None:
                walk_step = self.walk.adapted(walk_step, jnp.nan_to_num(seen.ess))
            norm = jnp.linalg.norm(gradient)
            finite = jnp.isfinite(norm) & jnp.isfinite(seen.loss)
            # optax mixes integers and floats; under strict promotion that has to be allowed
            with jax.numpy_dtype_promotion("standard"):
                updates, new_opt_state = optimiser.update(gradient, opt_state, flat)
            new_flat = flat + updates
            new = new_flat, average(mean, new_flat, self.training.ema, step), new_opt_state
            kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (flat, mean, opt_state))
            return (*kept, step + 1, walk_step), (seen, norm, finite)

        steps = self.training.inner_steps
        start = (flat, mean, state.optimiser, state.step, state.walk_step)
        end, (seen, norm, made) = jax.lax.scan(inner, start, jax.random.split(key, steps))
        flat, mean, opt_state, count, walk_step = end
        finite_loss = jnp.isfinite(seen.loss)
        info = Info(
            # updates that were skipped do not enter the mean; they are counted in `skipped`
            jnp.mean(seen.loss, where=finite_loss),
            jnp.mean(norm, where=finite_loss),
            jnp.mean(seen.ess, where=finite_loss),
            jnp.mean(seen.clipped),
            jnp.sum(seen.bad) + filled.lost,
            steps * self.training.batch_size - jnp.sum(seen.usable),
            jnp.mean((~made).astype(norm.dtype)),
            filled.acceptance,
        )
        model, mean = model_of(flat), model_of(mean)
        return State(model, mean, opt_state, contents, count, filled.step_size, walk_step), info

    @property
    def calls_per_step(self) -> int:
        """Energy calls of one outer loop."""
        training = self.training
        cost = self.estimator.cost * self.draws.num_samples
        if self.walk is not None:
            cost = self.walk.calls
        regressions = training.inner_steps * training.batch_size * cost
        filling = training.new_samples if self.buffer.needs_energy else 0
        if self.moves is not None:
            filling = self.moves.calls(training.new_samples)
        return regressions + filling + self.collect_calls
