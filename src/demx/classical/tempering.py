"""Parallel tempering as a method: `demx.methods.tempering` on a ladder of a fixed size.

step: `length` transitions while step sizes adapt, then new β_1 > … at which all pairs of
neighbours would have rejected equally often; β_0 = 1 and the hottest stay. `warm_start` are
points to begin from, (n, *shape): all replicas of ensemble c begin at row c mod n, as it is.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from demx.classical.chains import collect
from demx.classical.kernels import at_least, positive, start, start_calls
from demx.methods.tempering import Chains, Ladder, Tempering, geometric_ladder
from demx.types import Info, Method, Samples, Target


class ParallelTempering(eqx.Module):
    """num_chains: independent ensembles of num_rungs replicas at β from 1 to beta_min. length:
    transitions of a step. thin: transitions between samples of an ensemble. scale: rough standard
    deviation of a coordinate, where ensembles start (relaxed) unless they are told where to.
    """

    outer_steps: int = 20
    scale: float = 1.0
    num_chains: int = 32
    num_rungs: int = 8
    beta_min: float = 0.05
    num_leapfrog: int = 8
    length: int = 50
    thin: int = 10
    relax_steps: int = 200

    def __check_init__(self) -> None:
        positive(self, "scale")
        if not 0 < self.beta_min < 1:
            raise ValueError(f"beta_min: expected between 0 and 1, got {self.beta_min}")
        at_least(self, outer_steps=1, num_chains=1, num_rungs=2, num_leapfrog=1, length=2)
        at_least(self, thin=1, relax_steps=1)


class State(NamedTuple):
    """Replicas, their ladder, and how many steps have tuned it."""

    chains: Chains
    ladder: Ladder
    rounds: Int[Array, ""]


def respaced(ladder: Ladder, rejection: Float[Array, " pairs"]) -> Ladder:
    """As many rungs between the same ends, with equal rejections between neighbours.

    Rejections add up along the ladder whatever its spacing (Syed et al., 2022).
    """
    least = 1e-3  # a pair that never rejects still has a length
    steps = jnp.cumsum(jnp.maximum(rejection, least))
    cumulative = jnp.concatenate([jnp.zeros_like(steps[:1]), steps])
    at = jnp.linspace(0.0, 1.0, len(ladder.beta)) * cumulative[-1]
    log_beta, log_step = jnp.log(ladder.beta), jnp.log(ladder.step_size)
    new = jnp.interp(at, cumulative, log_beta).at[0].set(0.0)
    # jnp.interp wants rising abscissae
    return Ladder(jnp.exp(new), jnp.exp(jnp.interp(new, log_beta[::-1], log_step[::-1])))


def parallel_tempering(
    target: Target, settings: ParallelTempering, warm_start: ArrayLike | None = None
) -> Method:
    """Parallel tempering with HMC moves; samples are the replicas at β = 1."""
    engine = Tempering(target, settings.num_leapfrog)
    count, rungs = settings.num_chains, settings.num_rungs
    calls = count * rungs * settings.num_leapfrog  # of one transition

    @eqx.filter_jit
    def init(key: PRNGKeyArray) -> State:
        xs = start(key, target, settings, warm_start)
        ladder = geometric_ladder(rungs, settings.beta_min, 0.1 * settings.scale)
        return State(engine.init(xs, rungs), ladder, jnp.zeros((), int))

    @eqx.filter_jit
    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        begin = state.rounds * settings.length
        chains, ladder, moved = engine.tune(key, state.chains, state.ladder, settings.length, begin)
        new = State(chains, respaced(ladder, moved.rejection), state.rounds + 1)
        return new, Info(acceptance=jnp.mean(moved.acceptance), bad=jnp.sum(moved.bad))

    @eqx.filter_jit
    def advance(key: PRNGKeyArray, state: State):
        thin = jnp.asarray(settings.thin)
        chains, moved, u, value = engine.run(key, state.chains, state.ladder, 1, thin)
        xs = jax.vmap(target.space.configuration)(u[0])
        told = moved.acceptance[0], jnp.sum(moved.bad), jnp.asarray(settings.thin * calls)
        return state._replace(chains=chains), xs, ~jnp.isfinite(value[0]), told

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        return collect(advance, key, state, n, count)

    return Method(
        init,
        step,
        sample,
        calls_per_step=settings.length * calls,
        calls_at_init=start_calls(settings, warm_start),
        outer_steps=settings.outer_steps,
        sample_calls=lambda n: -(-n // count) * settings.thin * calls,
    )
