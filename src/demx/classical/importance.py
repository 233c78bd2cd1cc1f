"""Importance sampling from one normal that learns the moments of p (population Monte Carlo).

    u ~ q = N(m, diag v),    log w = log p̃ - log q
    m ← Σ w̄^τ u,  v ← c Σ w̄^τ (u - m)²,    τ ≤ 1 the largest power whose ESS share is enough

in orthonormal coordinates u; on a mean-free space m = 0 and all v are equal (Cappé et al., 2004;
tempered weights: Koblents and Míguez, 2015). mean(w) is an unbiased estimate of Z. A normal with
a diagonal covariance must cover p: its weights have infinite variance if in any direction p has
twice the variance of q (√2 times its width), and strong correlations cost effective samples.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.classical.kernels import at_least, positive
from demx.energy import evaluate
from demx.space import MeanFree
from demx.types import Info, Method, Samples, Target

HALVINGS = 30  # of the interval in which the power τ lies
NARROWEST = 1e-6  # variance against that of the start


class Importance(eqx.Module):
    """num_samples: of a step. least_ess: share of the weights that must be effective when they are
    tempered. inflation: c, how much wider than p the proposal is made, for the sake of the tails.
    scale: standard deviation of the first proposal.
    """

    outer_steps: int = 20
    scale: float = 1.0
    num_samples: int = 4096
    least_ess: float = 0.2
    inflation: float = 1.2

    def __check_init__(self) -> None:
        positive(self, "scale")
        at_least(self, outer_steps=1, num_samples=2, inflation=1.0)
        if not 0 < self.least_ess < 1:
            raise ValueError(f"least_ess: expected between 0 and 1, got {self.least_ess}")


class State(NamedTuple):
    """Mean and variances of the proposal."""

    mean: Float[Array, " dof"]
    variance: Float[Array, " dof"]


class Weighted(NamedTuple):
    """Points, their log q, and what the target says: log w (-∞ where bad)."""

    u: Float[Array, "n dof"]
    log_prob: Float[Array, " n"]
    log_weight: Float[Array, " n"]
    bad: Array


def log_ess(log_weight: Float[Array, " n"]) -> Float[Array, ""]:
    """log of (Σw)²/Σw²: the effective number of samples."""
    return 2 * jax.nn.logsumexp(log_weight) - jax.nn.logsumexp(2 * log_weight)


def tempered(log_weight: Float[Array, " n"], least: float) -> Float[Array, " n"]:
    """Weights w^τ/Σw^τ of the largest τ ≤ 1 with an effective share of at least `least`.

    By bisection: the effective share falls with τ. Weights of zero stay zero.
    """
    alive = jnp.isfinite(log_weight)
    log_least = jnp.log(least * jnp.sum(alive).astype(log_weight.dtype))

    def power(tau):
        return jnp.where(alive, tau * jnp.where(alive, log_weight, 0.0), -jnp.inf)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        enough = log_ess(power(middle)) >= log_least
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    zero, one = jnp.zeros_like(log_least), jnp.ones_like(log_least)
    low, _ = jax.lax.fori_loop(0, HALVINGS, halve, (zero, one))
    tau = jnp.where(log_ess(log_weight) >= log_least, 1.0, low)
    return jax.nn.softmax(power(tau))


def _log_prob(state: State, u: Float[Array, "n dof"]) -> Float[Array, " n"]:
    squared = (u - state.mean[None]) ** 2 / state.variance[None]
    return -0.5 * jnp.sum(squared + jnp.log(2 * jnp.pi * state.variance)[None], axis=1)


def importance(target: Target, settings: Importance) -> Method:
    """Importance sampling from a normal that adapts to the target.

    `sample` and `sample_weighted` are the same: draws of q with their weights.
    """
    space, size = target.space, settings.num_samples

    def weighted(key: PRNGKeyArray, state: State, n: int) -> Weighted:
        noise = jax.random.normal(key, (n, space.dof))
        u = state.mean[None] + jnp.sqrt(state.variance)[None] * noise
        found, log_prob = evaluate(target, jax.vmap(space.configuration)(u)), _log_prob(state, u)
        # -∞ where bad, and outside the support
        return Weighted(u, log_prob, found.log_density - log_prob, found.bad)

    def init(key: PRNGKeyArray) -> State:
        zero = jnp.zeros(space.dof)
        return State(zero, jnp.full_like(zero, settings.scale**2))

    @eqx.filter_jit
    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        drawn = weighted(key, state, size)
        share = tempered(drawn.log_weight, settings.least_ess)[:, None]
        mean = jnp.sum(share * drawn.u, axis=0)
        if isinstance(space, MeanFree):
            mean = jnp.zeros_like(mean)
        variance = settings.inflation * jnp.sum(share * (drawn.u - mean[None]) ** 2, axis=0)
        if isinstance(space, MeanFree):  # particles are exchangeable
            variance = jnp.full_like(variance, jnp.mean(variance))
        variance = jnp.maximum(variance, NARROWEST * settings.scale**2)
        # no point has a weight: stay
        usable = jnp.any(jnp.isfinite(drawn.log_weight))
        new = State(
            jnp.where(usable, mean, state.mean), jnp.where(usable, variance, state.variance)
        )
        ess = jnp.where(usable, jnp.exp(log_ess(drawn.log_weight)) / size, 0.0)
        return new, Info(ess=ess, bad=jnp.sum(drawn.bad))

    @eqx.filter_jit
    def draw(key: PRNGKeyArray, state: State, n: int):
        drawn = weighted(key, state, n)
        return jax.vmap(space.configuration)(drawn.u), *drawn[1:]

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        rows = min(n, size)  # of one compiled call: bounds memory
        keys = [jax.random.fold_in(key, i) for i in range(-(-n // rows))]
        made = zip(*(draw(key, state, rows) for key in keys), strict=True)
        x, log_prob, log_weight, bad = (jnp.concatenate(part) for part in made)
        wrong = int(jnp.sum(bad[:n]))
        return Samples(x[:n], log_weight[:n], log_prob[:n], energy_calls=sample_calls(n), bad=wrong)

    def sample_calls(n: int) -> int:
        rows = min(n, size)
        return rows * -(-n // rows)

    @eqx.filter_jit
    def log_prob(state: State, xs: Float[Array, "n ..."]) -> Float[Array, " n"]:
        return _log_prob(state, jax.vmap(space.coordinates)(space.project(xs)))

    return Method(
        init,
        step,
        sample,
        calls_per_step=size,
        log_prob=log_prob,
        sample_weighted=sample,
        outer_steps=settings.outer_steps,
        weighted=True,
        sample_calls=sample_calls,
    )
