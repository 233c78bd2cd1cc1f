"""The matching engine: an outer loop fills a buffer, an inner loop regresses (algorithm 1).

`collect(key, model)` gives the points that the outer loop puts into the buffer; it is all that
iDEM and pDEM differ in. One outer loop is `fill`, `prepare` (the batches of the inner steps) and
`descend` (these steps, one scan), compiled one after the other: what compiling one took can be
given back before the next.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from demx.buffer import Contents
from demx.devices import chunk_rows, compiled, everywhere, sum_chunks
from demx.energy import evaluate
from demx.methods.moves import Moves
from demx.methods.regression import Batch, Regression
from demx.methods.training import Training
from demx.model import ScoreModel, average, flatten
from demx.types import Info


class Seen(NamedTuple):
    """Of each inner step: loss, length of its gradient, and whether the update was made.

    ess, clipped: means over the points. usable: points that have a target, bad: energies that are
    not finite.
    """

    loss: Float[Array, " steps"]
    norm: Float[Array, " steps"]
    made: Float[Array, " steps"]
    ess: Float[Array, " steps"]
    clipped: Float[Array, " steps"]
    usable: Int[Array, " steps"]
    bad: Int[Array, " steps"]


class Filled(NamedTuple):
    """The buffer after an outer loop's new points, and what happened to them on the way."""

    contents: Contents
    lost: Int[Array, ""]
    step_size: Float[Array, ""]
    acceptance: Float[Array, ""] | None
    traded: Float[Array, ""] | None


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
    """The engine. `collect` comes from the method; the rest are values."""

    regression: Regression
    training: Training
    collect: Callable[[PRNGKeyArray, ScoreModel], Array]
    collect_calls: int = 0
    moves: Moves | None = None

    def init(self, model: ScoreModel, contents: Contents) -> State:
        flat, model_of = flatten(model)
        opt_state = self.training.transformation(model_of).init(flat)
        step_size = jnp.asarray(0.0 if self.moves is None else self.moves.step_size, float)
        walk = self.regression.walk
        walk_step = jnp.asarray(0.0 if walk is None else walk.step, float)
        return State(model, model, opt_state, contents, jnp.zeros((), int), step_size, walk_step)

    def fill(self, key: PRNGKeyArray, state: State) -> Filled:
        """New points into the buffer; one not finite is counted and drawn from the prior."""
        key_points, key_fallback, key_moves = jax.random.split(key, 3)
        points = self.collect(key_points, state.average)
        finite = jnp.all(jnp.isfinite(points), axis=tuple(range(1, points.ndim)))
        fallback = self.regression.prior(key_fallback, points.shape[0])
        keep = finite.reshape((-1,) + (1,) * (points.ndim - 1))
        points = jnp.where(keep, points, fallback)
        lost = jnp.sum(~finite)
        log_density = jnp.zeros(points.shape[0], points.dtype)
        step_size, acceptance, traded = state.step_size, None, None
        if self.moves is not None:
            moved = self.moves(key_moves, self.regression.target, points, step_size)
            step_size, acceptance = moved.step_size, moved.acceptance
            traded = moved.traded if self.moves.rungs > 1 else None
            # what the moves could not bring into the support is counted, and stays as it was
            inside = jnp.isfinite(moved.log_density)
            points = jnp.where(inside.reshape(keep.shape), moved.points, points)
            log_density = moved.log_density
            lost = lost + jnp.sum(~inside)
        elif self.regression.buffer.needs_energy:
            log_density, _, bad = evaluate(self.regression.target, points)
            lost = lost + jnp.sum(bad)
        contents = self.regression.buffer.add(state.contents, points, log_density)
        return Filled(contents, lost, step_size, acceptance, traded)

    def prepare(
        self, keys: Key[Array, " steps"], contents: Contents, walk_step: Float[Array, ""]
    ) -> tuple[Batch, Float[Array, ""]]:
        """A batch for each key, stacked, and the step of the walks after them."""
        return self.regression.batches(keys, contents, walk_step)

    def gradient(self, flat: Array, model_of, batch: Batch) -> tuple[Array, Array]:
        """Mean loss over one batch, and its gradient.

        flat: all parameters in one vector, of which `model_of` makes a model. Chunk by chunk:
        the network's activations stay in cache.
        """
        size = self.regression.size
        rows = chunk_rows(size, model_of(flat).rows_in_cache)

        def loss(flat, batch: Batch) -> Array:
            error = jax.vmap(model_of(flat))(batch.t, batch.x_t) - batch.score
            squared = jnp.sum(error**2, axis=tuple(range(1, error.ndim)))
            return jnp.sum(batch.weight * squared)

        chunks = jax.tree.map(lambda a: a.reshape(-1, rows, *a.shape[1:]), batch)
        total = sum_chunks(jax.value_and_grad(loss), flat, chunks)
        # over the usable points; without any it is nan and the update is not made
        usable = jnp.sum(batch.weight > 0).astype(flat.dtype)
        share = 1 / (self.regression.target.space.dof * jnp.where(usable > 0, usable, jnp.nan))
        return jax.tree.map(lambda a: share * a, total)

    def descend(self, state: State, batches: Batch) -> tuple[State, Seen]:
        """An inner step for each of the stacked batches."""
        flat, model_of = flatten(state.model)
        optimiser = self.training.transformation(model_of)
        mean, _ = flatten(state.average)

        def inner(carry, batch: Batch):
            flat, mean, opt_state, step = carry
            loss, gradient = self.gradient(flat, model_of, batch)
            norm = jnp.linalg.norm(gradient)
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            # optax mixes integers and floats; under strict promotion that has to be allowed
            with jax.numpy_dtype_promotion("standard"):
                updates, new_opt_state = optimiser.update(gradient, opt_state, flat)
            new_flat = flat + updates
            new = new_flat, average(mean, new_flat, self.training.ema, step), new_opt_state
            kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (flat, mean, opt_state))
            return (*kept, step + 1), (loss, norm, finite.astype(norm.dtype))

        start = (flat, mean, state.optimiser, state.step)
        (flat, mean, opt_state, count), of_steps = jax.lax.scan(inner, start, batches)
        usable = batches.weight > 0
        seen = Seen(
            *of_steps,
            jnp.mean(batches.ess, axis=1, where=usable),
            jnp.mean(batches.clipped, axis=1),
            jnp.sum(usable, axis=1),
            jnp.sum(batches.bad, axis=1),
        )
        model, mean = model_of(flat), model_of(mean)
        made = State(
            model, mean, opt_state, state.contents, count, state.step_size, state.walk_step
        )
        return made, seen

    def summary(self, filled: Filled, parts: list[Seen]) -> Info:
        """Of a whole outer loop, whose inner steps came in parts."""
        seen = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
        finite = jnp.isfinite(seen.loss)
        return Info(
            # updates that were skipped do not enter the mean; they are counted in `skipped`
            jnp.mean(seen.loss, where=finite),
            jnp.mean(seen.norm, where=finite),
            jnp.mean(seen.ess, where=finite),
            jnp.mean(seen.clipped),
            jnp.sum(seen.bad) + filled.lost,
            self.training.inner_steps * self.regression.size - jnp.sum(seen.usable),
            jnp.mean(1 - seen.made),
            filled.acceptance,
            traded=filled.traded,
        )

    def stepper(self) -> Callable[[PRNGKeyArray, State], tuple[State, Info]]:
        """step(key, state): one outer loop, of programs that are compiled once."""
        fill, prepare, descend, summary = (
            compiled(f) for f in (self.fill, self.prepare, self.descend, self.summary)
        )
        steps = self.training.inner_steps
        together = self.regression.at_once(steps)

        def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
            key_fill, key_inner, state = everywhere((*jax.random.split(key), state))
            filled = fill(key_fill, state)
            state = eqx.tree_at(
                lambda s: (s.contents, s.step_size), state, (filled.contents, filled.step_size)
            )
            seen = []
            for keys in jax.random.split(key_inner, (steps // together, together)):
                batches, walk_step = prepare(keys, state.contents, state.walk_step)
                state = eqx.tree_at(lambda s: s.walk_step, state, walk_step)
                state, of_part = descend(state, batches)
                seen.append(of_part)
                del batches  # before the next are made
            return state, summary(filled, seen)

        return step

    def plan(self, state: State, outer_steps: int) -> State:
        """The state of a run that is to end after so many outer loops."""
        optimiser = self.training.planned(state.optimiser, outer_steps)
        return eqx.tree_at(lambda s: s.optimiser, state, optimiser)

    @property
    def calls_per_step(self) -> int:
        """Energy calls of one outer loop."""
        training = self.training
        filling = training.new_samples if self.regression.buffer.needs_energy else 0
        if self.moves is not None:
            filling = self.moves.calls(training.new_samples)
        return training.inner_steps * self.regression.calls + filling + self.collect_calls
