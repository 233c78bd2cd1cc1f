"""Markov kernels as values: one transition of one walker that leaves exp(log_density(u)) invariant.

u are orthonormal coordinates of the space, so no move leaves it. The proposals are BlackJAX's;
`variance` is the diagonal of the inverse mass, `step_size` a length in units of its root:

    random walk  u' = u + ε √v ξ
    MALA         u' = u + ½ε² v ∇ + ε √v ξ
    HMC, NUTS    leapfrog steps of size ε with momenta of variance 1/v
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from demx.descent import in_turn, relax
from demx.energy import evaluate, pointwise
from demx.space import normal
from demx.types import Target

OVERDISPERSED = 2.0  # standard deviations of the starting points, in units of the scale
JITTER = 0.3  # of HMC's steps: trajectories of varying length cannot resonate


class Walker(NamedTuple):
    """Coordinates, log p̃ and its gradient; many side by side have a leading axis C."""

    position: Float[Array, "*C dof"]
    log_density: Float[Array, "*C"]
    gradient: Float[Array, "*C dof"]


class Moved(NamedTuple):
    """Acceptance probability; whether the proposal's log p̃ was not finite; energy calls used."""

    acceptance: Float[Array, "*C"]
    bad: Bool[Array, "*C"]
    calls: Int[Array, "*C"]


LogDensity = Callable[[Array], Array]


class Kernel(NamedTuple):
    """move(key, walker, log_density, step_size, variance), for one walker; the acceptance it is
    tuned to; the most energy calls of a move; whether some moves take fewer.
    """

    move: Callable[[PRNGKeyArray, Walker, LogDensity, Array, Array], tuple[Walker, Moved]]
    acceptance: float
    calls: int
    uneven: bool = False


@contextmanager
def lenient():
    """BlackJAX mixes dtypes and ranks; a caller may be strict about both."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def in_coordinates(target: Target) -> LogDensity:
    """u -> log p̃(x(u)); batches of it take the target's fused path, a bad point has -∞."""
    log_density, configuration = pointwise(target), target.space.configuration
    return lambda u: log_density(configuration(u))


def start(
    key: PRNGKeyArray, target: Target, settings, warm_start: ArrayLike | None
) -> Float[Array, "C ..."]:
    """Given points in turn, as they are; without any, points of a normal twice as wide as the
    scale, relaxed a little. settings: with num_chains, scale and relax_steps.
    """
    count, scale = settings.num_chains, settings.scale
    if warm_start is not None:
        return in_turn(warm_start, target, count)
    xs = OVERDISPERSED * scale * normal(key, target.space, (count,))
    return target.space.project(relax(target, xs, settings.relax_steps, scale))


def start_calls(settings, warm_start: ArrayLike | None) -> int:
    """Energy calls of `start` and of a first look at its points."""
    return settings.num_chains * (1 + (settings.relax_steps if warm_start is None else 0))


def walkers(target: Target, xs: Float[Array, "C ..."]) -> tuple[Walker, Bool[Array, " C"]]:
    """Walkers at points of the space, and which of them are bad: C energy calls."""
    found, coordinates = evaluate(target, xs), jax.vmap(target.space.coordinates)
    return Walker(coordinates(xs), found.log_density, coordinates(found.score)), found.bad


def _moved(acceptance: Array, proposed: Array, calls: Array | int) -> Moved:
    # a trajectory that leaves the finite numbers has acceptance nan: it was rejected
    acceptance = jnp.nan_to_num(acceptance, nan=0.0)
    return Moved(acceptance, ~jnp.isfinite(proposed), jnp.asarray(calls, int))


def random_walk() -> Kernel:
    """Metropolis et al. (1953): a normal step, no gradient (it is carried along as 0)."""

    def move(key, walker, log_density, step_size, variance):
        from blackjax.mcmc import random_walk  # takes seconds to import: only when chains are run

        width = step_size * jnp.sqrt(variance)
        with lenient():
            new, info = random_walk.build_additive_step()(
                key,
                random_walk.RWState(walker.position, walker.log_density),
                log_density,
                random_walk.normal(width),
            )
        made = Walker(new.position, new.logdensity, jnp.zeros_like(walker.gradient))
        return made, _moved(info.acceptance_rate, info.proposal.logdensity, 1)

    return Kernel(move, 0.234, 1)  # Roberts, Gelman and Gilks (1997)


def langevin() -> Kernel:
    """MALA: HMC of one leapfrog step, the same move (Neal, 2011), which tells its proposal."""
    return Kernel(_trajectory(1, jitter=0.0), 0.574, 1)  # Roberts and Rosenthal (1998)


def hamiltonian(num_leapfrog: int) -> Kernel:
    """HMC with a fixed number of leapfrog steps of a length jittered by 30 %."""
    return Kernel(_trajectory(num_leapfrog, JITTER), 0.8, num_leapfrog)


def _trajectory(num_leapfrog: int, jitter: float):
    def move(key, walker, log_density, step_size, variance):
        from blackjax.mcmc import hmc

        key_jitter, key_move = jax.random.split(key)
        factor = jax.random.uniform(key_jitter, minval=1 - jitter, maxval=1 + jitter)
        with lenient():
            new, info = hmc.build_kernel()(
                key_move,
                hmc.HMCState(*walker),
                log_density,
                factor * step_size,
                variance,
                num_leapfrog,
            )
        return Walker(*new), _moved(info.acceptance_rate, info.proposal.logdensity, num_leapfrog)

    return move


def no_u_turn(max_doublings: int) -> Kernel:
    """NUTS (Hoffman and Gelman, 2014), with at most 2^max_doublings - 1 leapfrog steps.

    calls: the integration steps of this walker. Walkers that move side by side wait for the
    longest trajectory; what the machine computes for them meanwhile is thrown away, not counted
    (an energy on the host is asked for one walker after the other instead).
    """

    def move(key, walker, log_density, step_size, variance):
        from blackjax.mcmc import hmc, nuts

        with lenient():
            new, info = nuts.build_kernel()(
                key, hmc.HMCState(*walker), log_density, step_size, variance, max_doublings
            )
        # a trajectory ends where it meets a bad point: at one of its ends
        left, right = info.trajectory_leftmost_state, info.trajectory_rightmost_state
        proposed = left.logdensity + right.logdensity
        return Walker(*new), _moved(info.acceptance_rate, proposed, info.num_integration_steps)

    return Kernel(move, 0.8, 2**max_doublings - 1, uneven=True)


def at_least(settings, **least: float) -> None:
    """Raise unless every named field is at least so much."""
    for name, bound in least.items():
        if not getattr(settings, name) >= bound:
            raise ValueError(f"{name}: expected at least {bound}, got {getattr(settings, name)}")


def positive(settings, *names: str) -> None:
    """Raise unless every named field is a positive finite number."""
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):
            raise ValueError(f"{name}: expected a positive number, got {getattr(settings, name)}")
