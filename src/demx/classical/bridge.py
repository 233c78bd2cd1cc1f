"""Particles carried from a normal to p along π_β ∝ N(u; 0, s²)^{1-β} p̃(u)^β, 0 = β_0 < … < β_R = 1.

    log w ← log w + (β_k - β_{k-1}) (log p̃(u) - log N(u; 0, s²)),
    resampling within islands if their weights ask for it, then an HMC move that leaves π_βk.

With everything fixed beforehand mean(w) is an unbiased estimate of Z (Neal, 2001; Del Moral et
al., 2006). Pilot runs tell a step size for every rung and better rungs.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.classical.importance import log_ess
from demx.classical.kernels import Walker, hamiltonian, in_coordinates, lenient, walkers
from demx.space import normal
from demx.types import Target

FORGET = 0.5  # how much of a correction of the step size the next rung inherits
LONGEST = 4.0  # spread of log w beyond which a rung's own is no measure of how many it needs


class State(NamedTuple):
    """The rungs and, for all but the first, the step size; how many pilots have tuned them."""

    beta: Float[Array, " rungs"]
    log_step: Float[Array, " fewer"]
    rounds: Int[Array, ""]


class Particles(NamedTuple):
    """Walkers (log p̃ and gradient of the target itself) with their log weights."""

    walker: Walker
    log_weight: Float[Array, " n"]


class Told(NamedTuple):
    """Of every rung: spread of the log weights it added, acceptance, corrected log step size."""

    spread: Float[Array, " rungs"]
    acceptance: Float[Array, " rungs"]
    log_step: Float[Array, " rungs"]
    bad: Int[Array, " rungs"]


class Islands(NamedTuple):
    """Equal groups of particles; each resamples if its effective share is lower than `below`."""

    count: int
    rows: int
    below: float


def resample(key: PRNGKeyArray, particles: Particles, islands: Islands) -> Particles:
    """Systematic resampling, in random order: every place has the same law.

    Afterwards all of an island have its mean weight: log mean w does not change.
    """
    if islands.below == 0:
        return particles
    from blackjax.smc.resampling import systematic

    def one(key, log_weight):
        key_choose, key_order = jax.random.split(key)
        total = jax.nn.logsumexp(log_weight)
        enough = jnp.log(islands.below * islands.rows)
        needed = jnp.isfinite(total) & (log_ess(log_weight) < enough)
        share = jnp.where(needed, jnp.exp(log_weight - total), 1 / islands.rows)
        with lenient():
            chosen = systematic(key_choose, share, islands.rows)
        # sums that round to less than 1 may choose the last one, even of weight 0
        chosen = jnp.where(share[chosen] > 0, chosen, jnp.argmax(share))
        chosen = chosen[jnp.argsort(jax.random.uniform(key_order, chosen.shape))]
        even = jnp.full_like(log_weight, total - jnp.log(float(islands.rows)))
        same = jnp.arange(islands.rows)
        return jnp.where(needed, chosen, same), jnp.where(needed, even, log_weight)

    split = particles.log_weight.reshape(islands.count, islands.rows)
    chosen, log_weight = jax.vmap(one)(jax.random.split(key, islands.count), split)
    first = islands.rows * jnp.arange(islands.count)[:, None]
    rows = (first + chosen).ravel()
    walker = jax.tree.map(lambda a: a[rows], particles.walker)
    return Particles(walker, log_weight.ravel())


class Path(eqx.Module):
    """The engine: s, and the energy calls of the HMC move at a rung, in steps of unit s."""

    target: Target
    scale: float
    num_leapfrog: int

    def log_start(self, u: Float[Array, " dof"]) -> Float[Array, ""]:
        normaliser = u.shape[0] * jnp.log(2 * jnp.pi * self.scale**2)
        return -0.5 * (jnp.sum(u * u) / self.scale**2 + normaliser)

    def move(self, key, walker: Walker, beta, step_size):
        """HMC at β; log p̃ and its gradient come back out of those of π_β."""
        log_density, kernel = in_coordinates(self.target), hamiltonian(self.num_leapfrog)
        mass = jnp.full_like(walker.position[0], self.scale**2)

        def bridge(u, value, gradient):
            start, slope = self.log_start(u), -u / self.scale**2
            return beta * value + (1 - beta) * start, beta * gradient + (1 - beta) * slope

        def one(key, walker: Walker):
            at = Walker(walker.position, *bridge(*walker))
            mixed = lambda u: beta * log_density(u) + (1 - beta) * self.log_start(u)  # noqa: E731
            new, moved = kernel.move(key, at, mixed, step_size, mass)
            u, zero = new.position, jnp.zeros_like(new.log_density)
            start, slope = bridge(u, zero, jnp.zeros_like(u))
            value, gradient = (new.log_density - start) / beta, (new.gradient - slope) / beta
            # what was not accepted is as it was, to the last digit
            stay = jnp.all(u == walker.position)
            made = Walker(u, value, gradient)
            return jax.tree.map(lambda old, new: jnp.where(stay, old, new), walker, made), moved

        return jax.vmap(one)(jax.random.split(key, len(walker.position)), walker)

    def run(
        self, key: PRNGKeyArray, state: State, islands: Islands, rate: Float[Array, ""]
    ) -> tuple[Particles, Told, Bool[Array, " n"]]:
        """n particles from β = 0 to 1: n (1 + R num_leapfrog) energy calls.

        rate: how fast step sizes follow the acceptance; 0 while samples are drawn. Returned with
        the particles: what the rungs tell, and which particles started at a bad point.
        """
        n = islands.count * islands.rows
        target = hamiltonian(self.num_leapfrog).acceptance
        key_start, key_rungs = jax.random.split(key)
        xs = self.scale * normal(key_start, self.target.space, (n,))
        walker, bad = walkers(self.target, xs)

        def rung(carry, now):
            particles, offset = carry
            key, before, beta, log_step = now
            key_choose, key_move = jax.random.split(key)
            walker, log_weight = particles
            ratio = walker.log_density - jax.vmap(self.log_start)(walker.position)
            added = (beta - before) * ratio
            # a particle of weight zero keeps it: it may have moved into the support since
            log_weight = jnp.where(jnp.isfinite(log_weight), log_weight + added, -jnp.inf)
            chosen = resample(key_choose, Particles(walker, log_weight), islands)
            walker, moved = self.move(key_move, chosen.walker, beta, jnp.exp(log_step + offset))
            acceptance = jnp.mean(moved.acceptance)
            offset = FORGET * offset + rate * (acceptance - target)
            told = Told(_spread(added), acceptance, log_step + offset, jnp.sum(moved.bad))
            return (Particles(walker, chosen.log_weight), offset), told

        keys = jax.random.split(key_rungs, len(state.beta) - 1)
        rungs = (keys, state.beta[:-1], state.beta[1:], state.log_step)
        begin = Particles(walker, jnp.zeros_like(walker.log_density)), jnp.zeros_like(rate)
        (particles, _), told = jax.lax.scan(rung, begin, rungs)
        return particles, told, bad


def _spread(values: Float[Array, " n"]) -> Float[Array, ""]:
    """Standard deviation of a normal with the same 5 and 95 % quantiles.

    A few overlapping particles would decide a variance.
    """
    least = jnp.finfo(values.dtype).min / 4
    low, high = jnp.quantile(jnp.maximum(values, least), jnp.asarray([0.05, 0.95]))
    return (high - low) / 3.29


def respaced(state: State, told: Told, rate: Float[Array, ""]) -> State:
    """As many rungs, each of the same spread of log w: part of the way there, by `rate`."""
    steps = jnp.cumsum(jnp.clip(told.spread, 1e-4, LONGEST))
    cumulative = jnp.concatenate([jnp.zeros_like(steps[:1]), steps])
    at = jnp.linspace(0.0, 1.0, len(state.beta)) * cumulative[-1]
    found = jnp.interp(at, cumulative, state.beta)
    beta = (state.beta + rate * (found - state.beta)).at[-1].set(1.0)
    log_step = jnp.interp(beta[1:], state.beta[1:], told.log_step)
    return State(beta, log_step, state.rounds + 1)
