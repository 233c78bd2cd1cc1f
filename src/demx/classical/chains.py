"""Markov chains side by side: random-walk Metropolis, MALA, HMC and NUTS, one engine for all.

    log ε ← log ε + (1 + i)^{-1/2} (ā_i - a*),    ā_i the mean acceptance over the chains,

a* = 0.234, 0.574, 0.8 or 0.8. One step of the method is `length` such transitions, half of which
tell the next step size (its mean) and the diagonal mass. Nothing adapts while samples are drawn,
so p is exactly invariant then. A chain whose energy is beyond all reason when a step ends begins
again where another is (`Info.restarted`). Chains of local moves do not travel between far modes:
how many of them sit in a mode is decided by where they start. `warm_start` are points for that,
(n, *shape): chain c begins at row c mod n, as it is, and `relax_steps` has no effect.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from demx.classical.kernels import (
    Kernel,
    Moved,
    Walker,
    at_least,
    hamiltonian,
    in_coordinates,
    langevin,
    no_u_turn,
    positive,
    random_walk,
    start,
    start_calls,
    walkers,
)
from demx.space import MeanFree
from demx.targets.black_box import BlackBox
from demx.types import Info, Method, Samples, Target

NARROWEST = 1e-6  # variance of a coordinate against the mean one
# energy of a degree of freedom over the median of the chains, which p would visit as seldom as
# exp(-100), were there not e^100 times the length to make up for it
BEYOND = 100.0


class Metropolis(eqx.Module):
    """scale: rough standard deviation of a coordinate; chains start from twice that, and with steps
    of a tenth. num_chains: side by side. length: transitions of a step. thin: transitions between
    samples of a chain. relax_steps: of descent before a chain starts, unless it is told where to.
    """

    outer_steps: int = 20
    scale: float = 1.0
    num_chains: int = 64
    length: int = 400
    thin: int = 200
    relax_steps: int = 200

    def __check_init__(self) -> None:
        positive(self, "scale")
        at_least(self, outer_steps=1, num_chains=1, length=2, thin=1, relax_steps=1)


class Mala(Metropolis):
    """Those of Metropolis; gradients need fewer transitions."""

    thin: int = 50


class Hmc(Metropolis):
    """num_leapfrog: energy calls of one transition; others as for Metropolis."""

    length: int = 50
    thin: int = 5
    num_leapfrog: int = 8

    def __check_init__(self) -> None:
        at_least(self, num_leapfrog=1)


class Nuts(Metropolis):
    """max_doublings: a transition takes at most 2^max_doublings - 1 energy calls."""

    length: int = 25
    thin: int = 2
    max_doublings: int = 7

    def __check_init__(self) -> None:
        at_least(self, max_doublings=1)


class State(NamedTuple):
    """Chains, and what is tuned: the step size and the diagonal of the inverse mass.

    The latter has geometric mean 1, so that the step size is a length whatever it is.
    """

    walker: Walker
    step_size: Float[Array, ""]
    variance: Float[Array, " dof"]


def metropolis(target: Target, settings: Metropolis, warm_start: ArrayLike | None = None) -> Method:
    """Random-walk Metropolis: no gradients."""
    return _method(target, settings, random_walk(), warm_start)


def mala(target: Target, settings: Mala, warm_start: ArrayLike | None = None) -> Method:
    """The Metropolis-adjusted Langevin algorithm."""
    return _method(target, settings, langevin(), warm_start)


def hmc(target: Target, settings: Hmc, warm_start: ArrayLike | None = None) -> Method:
    """Hamiltonian Monte Carlo with trajectories of a fixed number of steps."""
    return _method(target, settings, hamiltonian(settings.num_leapfrog), warm_start)


def nuts(target: Target, settings: Nuts, warm_start: ArrayLike | None = None) -> Method:
    """The no-U-turn sampler; `calls_per_step` is the most a step can take."""
    return _method(target, settings, no_u_turn(settings.max_doublings), warm_start)


def _method(
    target: Target, settings: Metropolis, kernel: Kernel, warm_start: ArrayLike | None
) -> Method:
    space, count = target.space, settings.num_chains
    log_density = in_coordinates(target)

    def transition(key, walker: Walker, step_size, variance) -> tuple[Walker, Moved]:
        one = lambda now: kernel.move(*now, log_density, step_size, variance)  # noqa: E731
        now = jax.random.split(key, count), walker
        # side by side, walkers that have come to an end would be asked for with the others
        if kernel.uneven and isinstance(target, BlackBox):
            return jax.lax.map(one, now)
        return jax.vmap(one)(now)

    @eqx.filter_jit
    def init(key: PRNGKeyArray) -> State:
        xs = start(key, target, settings, warm_start)
        walker, _ = walkers(target, xs)
        step_size = jnp.asarray(0.1 * settings.scale, walker.position.dtype)
        return State(walker, step_size, jnp.ones_like(walker.position[0]))

    @eqx.filter_jit
    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        def body(carry, now):
            walker, log_step = carry
            key, index = now
            walker, moved = transition(key, walker, jnp.exp(log_step), state.variance)
            gap = jnp.mean(moved.acceptance) - kernel.acceptance
            log_step = log_step + gap / jnp.sqrt(1 + index)
            return (walker, log_step), (walker.position, log_step, moved)

        begin = state.walker, jnp.log(state.step_size)
        index = jnp.arange(settings.length).astype(state.step_size.dtype)
        keys = jax.random.split(key, settings.length)
        (walker, _), (path, log_step, moved) = jax.lax.scan(body, begin, (keys, index))
        half = settings.length // 2
        walker, lost = _anew(walker)
        new = State(walker, jnp.exp(jnp.mean(log_step[half:])), _mass(space, path[half:]))
        info = Info(
            acceptance=jnp.mean(moved.acceptance[half:]),
            bad=jnp.sum(moved.bad),
            energy_calls=jnp.sum(moved.calls),
            restarted=jnp.sum(lost),
        )
        return new, info

    @eqx.filter_jit
    def advance(key: PRNGKeyArray, state: State):
        """`thin` transitions; configurations, which are bad, acceptance, bad calls, calls."""

        def body(walker, key):
            walker, moved = transition(key, walker, state.step_size, state.variance)
            sums = jnp.mean(moved.acceptance), jnp.sum(moved.bad), jnp.sum(moved.calls)
            return walker, sums

        keys = jax.random.split(key, settings.thin)
        walker, (acceptance, bad, calls) = jax.lax.scan(body, state.walker, keys)
        xs = jax.vmap(space.configuration)(walker.position)
        told = jnp.mean(acceptance), jnp.sum(bad), jnp.sum(calls)
        return state._replace(walker=walker), xs, ~jnp.isfinite(walker.log_density), told

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        return collect(advance, key, state, n, count)

    return Method(
        init,
        step,
        sample,
        calls_per_step=count * settings.length * kernel.calls,
        calls_at_init=start_calls(settings, warm_start),
        outer_steps=settings.outer_steps,
        sample_calls=lambda n: -(-n // count) * count * settings.thin * kernel.calls,
    )


def collect(advance, key: PRNGKeyArray, state, n: int, count: int) -> Samples:
    """n samples, `count` of them from each call of advance(key, state): one program whatever n.

    It returns the next state, count configurations, which of them are bad, and the acceptance,
    the bad calls and the calls that they took. The states of one chain are an island.
    """
    xs, bad, told = [], [], []
    for i in range(-(-n // count)):
        state, x, wrong, numbers = advance(jax.random.fold_in(key, i), state)
        xs.append(x)
        bad.append(wrong)
        told.append([float(number) for number in numbers])
    acceptance, bad_calls, calls = zip(*told, strict=True)
    return Samples(
        jnp.concatenate(xs)[:n],
        energy_calls=int(sum(calls)),
        bad=int(jnp.sum(jnp.concatenate(bad)[:n])),
        island=jnp.arange(n) % count,
        acceptance=sum(acceptance) / len(acceptance),
        bad_calls=int(sum(bad_calls)),
    )


def _anew(walker: Walker) -> tuple[Walker, Bool[Array, " C"]]:
    """Walkers with energies beyond all reason go where others are; also which ones these are.

    Such as one with particles on top of each other: hardly a proposal leads it out.
    """
    reason = jnp.median(walker.log_density) - BEYOND * walker.position.shape[-1]
    lost = walker.log_density < reason
    count = len(lost)
    # those that are not lost, in turn
    others = jnp.argsort(lost)[jnp.arange(count) % jnp.sum(~lost)]
    source = jnp.where(lost, others, jnp.arange(count))
    return jax.tree.map(lambda a: a[source], walker), lost


def _mass(space, path: Float[Array, "T C dof"]) -> Float[Array, " dof"]:
    """Variances of the coordinates over all chains, divided by their geometric mean.

    Particles are exchangeable, their coordinates have one variance: 1.
    """
    if isinstance(space, MeanFree):
        return jnp.ones_like(path[0, 0])
    variance = jnp.var(path, axis=(0, 1))
    variance = jnp.maximum(variance, NARROWEST * jnp.mean(variance))
    # chains that never moved from one point tell nothing
    variance = jnp.where(jnp.mean(variance) > 0, variance, 1.0)
    return variance / jnp.exp(jnp.mean(jnp.log(variance)))
