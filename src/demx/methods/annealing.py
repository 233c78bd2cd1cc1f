"""Annealed SMC along the learned noise levels: weights repair what a learned score gets wrong.

    x' ~ q(x' | x) = N(x + (v - v') s(t, x), spread),    a step of the reverse SDE from v to v'
    w  ← w · p̂_{v'}(x') N(x; x', v - v') / (p̂_v(x) q(x' | x))

p̂_v(x) is a noisy value of the density at noise v, kept with its particle, and p̂_0 = p̃ (a
Feynman-Kac model with random potentials). So the weights are exact whatever the score is:
self-normalised means converge to those of p, and mean(w) is an unbiased estimate of Z, also with
resampling on the way. A bad score costs effective samples, not correctness. What p̂ is on the way is
free: the importance-sampling estimate of ∫ p̃(x_0) N(x_0; x, v) dx_0 as far as it can be trusted, a
normal of the right width where it cannot:

    log p̂ = γ(v) log p̂_IS + (1 - γ(v)) log N(x; 0, v + s²),    γ(v) = min(1, ½/sd(log p̂_IS)).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.energy import evaluate, evaluate_columns
from demx.noise import Noise
from demx.sde import posterior_variance, step_variance
from demx.space import log_normal, normal
from demx.types import Target

Scores = Callable[[Array, Array], Array]  # of a time and n points
NOISE = 0.5  # standard deviation of log p̂ that weights can bear


class Swarm(NamedTuple):
    """Particles with what they carry: score and log p̂ at their level, log weight."""

    x: Float[Array, "n ..."]
    score: Float[Array, "n ..."]
    log_smoothed: Float[Array, " n"]
    log_weight: Float[Array, " n"]


class Annealed(NamedTuple):
    """Weighted particles at noise 0; log mean w estimates log Z. bad: energies not finite."""

    x: Float[Array, "n ..."]
    log_weight: Float[Array, " n"]
    resampled: Int[Array, ""]
    bad: Int[Array, ""]


class Annealing(eqx.Module):
    """num_samples: energies behind each p̂. island: particles that resample among themselves;
    islands are independent, so their spread gives standard errors. resample_below: effective
    share of the weights at which an island resamples.
    """

    num_samples: int = 16
    island: int = 256
    resample_below: float = 0.5

    def __check_init__(self) -> None:
        if self.num_samples < 2 or self.island < 2:
            raise ValueError(
                "num_samples, island: expected at least 2, "
                f"got {self.num_samples} and {self.island}"
            )
        if not 0 <= self.resample_below <= 1:
            raise ValueError(f"resample_below: expected between 0 and 1, got {self.resample_below}")

    def calls(self, n: int, num_steps: int) -> int:
        """Energy calls of n particles that take num_steps steps, the last of them to p itself."""
        return n * (num_steps * self.num_samples + 1)

    def run(
        self,
        key: PRNGKeyArray,
        target: Target,
        scores: Scores,
        noise: Noise,
        times: Float[Array, " levels"],
        prior_variance: Float[Array, ""] | float,
        local_variance: Float[Array, ""] | float,
        trust: Float[Array, " steps"],
        n: int,
    ) -> Annealed:
        """One island of n particles from N(0, prior_variance) at times[0] to p at times[-1] = 0.

        local_variance: of the target around one of its modes; how narrow the guided half of the
        draws behind p̂ is, and the noise of the last step. Any positive value is correct.
        trust: γ at all times but the last, of `trusted` (any value in [0, 1] is correct).
        """
        space = target.space
        variances = jax.vmap(noise.variance)(times)
        key_start, key_smooth, key_levels, key_last, key_order = jax.random.split(key, 5)

        width = prior_variance - variances[0]  # s²: the target's own

        def smoothed(key, v, share, x, s):
            keys = jax.random.split(key, n)
            spread = posterior_variance(v, local_variance)

            def one(key, x, s):
                found, wrong = log_smoothed(key, target, v, x, x + v * s, spread, self.num_samples)
                rough = log_normal(space, x, v + width)
                # 0·(-∞): no trust in an estimate of zero
                mixed = jnp.where(share > 0, share * found, 0.0) + (1 - share) * rough
                return mixed, wrong

            return jax.vmap(one)(keys, x, s)

        def moved(key, swarm: Swarm, v, v_next) -> tuple[Array, Array]:
            """The next points, and log N(x; x', v - v') - log q(x' | x)."""
            mean = swarm.x + (v - v_next) * swarm.score
            spread = step_variance(v, v_next, local_variance)
            z = normal(key, space, (n,))
            x = mean + jnp.sqrt(spread) * z
            back = jax.vmap(lambda d: log_normal(space, d, v - v_next))(swarm.x - x)
            return x, back - jax.vmap(lambda z: log_normal(space, z, 1.0))(z) + (
                0.5 * space.dof * jnp.log(spread)
            )

        def level(carry, now):
            swarm, bad, count = carry
            key, t, v, v_next, share = now
            key_move, key_estimate, key_choose = jax.random.split(key, 3)
            x, ratio = moved(key_move, swarm, v, v_next)
            s = scores(t, x)
            log_p, wrong = smoothed(key_estimate, v_next, share, x, s)
            weight = _updated(swarm, log_p + ratio)
            swarm = Swarm(x, s, log_p, weight)
            swarm, chosen = resample(key_choose, swarm, self.resample_below)
            return (swarm, bad + jnp.sum(wrong), count + chosen.astype(int)), None

        x = jnp.sqrt(prior_variance) * normal(key_start, space, (n,))
        s = scores(times[0], x)
        log_p, wrong = smoothed(key_smooth, variances[0], trust[0], x, s)
        weight = log_p - jax.vmap(lambda x: log_normal(space, x, prior_variance))(x)
        start = Swarm(x, s, log_p, weight), jnp.sum(wrong), jnp.zeros((), int)
        steps = len(times) - 2
        keys = jax.random.split(key_levels, steps)
        levels = (keys, times[1:-1], variances[:-2], variances[1:-1], trust[1:])
        (swarm, bad, count), _ = jax.lax.scan(level, start, levels)
        x, ratio = moved(key_last, swarm, variances[-2], variances[-1])
        exact = evaluate(target, x)
        weight = _updated(swarm, exact.log_density + ratio)
        order = jax.random.permutation(key_order, n)  # resampled copies stand side by side
        return Annealed(x[order], weight[order], count, bad + jnp.sum(exact.bad))

    def trusted(
        self,
        key: PRNGKeyArray,
        target: Target,
        scores: Scores,
        noise: Noise,
        times: Float[Array, " levels"],
        prior_variance: Float[Array, ""] | float,
        local_variance: Float[Array, ""] | float,
        n: int,
    ) -> Float[Array, " steps"]:
        """γ at all times but the last: how well two estimates agree along n pilot paths.

        2·num_samples·n energy calls a level. The pilots are independent of the particles that
        use γ, so the estimate of Z stays unbiased.
        """
        space = target.space
        variances = jax.vmap(noise.variance)(times)

        def level(x, now):
            key, t, v, v_next = now
            key_move, *key_pair = jax.random.split(key, 3)
            s = scores(t, x)
            spread = posterior_variance(v, local_variance)

            def estimate(key):
                one = lambda k, x, s: log_smoothed(  # noqa: E731
                    k, target, v, x, x + v * s, spread, self.num_samples
                )[0]
                return jax.vmap(one)(jax.random.split(key, n), x, s)

            difference = estimate(key_pair[0]) - estimate(key_pair[1])
            sd = jnp.sqrt(jnp.mean(difference**2) / 2)
            z = normal(key_move, space, (n,))
            x = x + (v - v_next) * s + jnp.sqrt(step_variance(v, v_next, local_variance)) * z
            # nan: an estimate of zero
            return x, jnp.where(jnp.isfinite(sd), jnp.minimum(1.0, NOISE / sd), 0.0)

        key_start, key_levels = jax.random.split(key)
        x = jnp.sqrt(prior_variance) * normal(key_start, space, (n,))
        keys = jax.random.split(key_levels, len(times) - 1)
        _, trust = jax.lax.scan(level, x, (keys, times[:-1], variances[:-1], variances[1:]))
        return trust


def _updated(swarm: Swarm, gain: Array) -> Array:
    """log w + gain - log p̂(x): a particle of weight zero keeps it."""
    alive = jnp.isfinite(swarm.log_weight) & jnp.isfinite(gain)
    return jnp.where(alive, swarm.log_weight + gain - swarm.log_smoothed, -jnp.inf)


def log_smoothed(
    key: PRNGKeyArray,
    target: Target,
    variance: Float[Array, ""],
    x: Float[Array, "..."],
    mean: Float[Array, "..."],
    spread: Float[Array, ""],
    num_samples: int,
) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """log of an unbiased estimate of ∫ p̃(x_0) N(x_0; x, v) dx_0, and how many energies were bad.

    Half of the draws come from N(x, v), half from N(mean, spread) around the denoised point, all
    weighted by the mixture of both: never more than twice what N(x, v) alone would give.
    """
    space = target.space
    noise = jax.random.normal(key, (*space.shape, num_samples))
    noise = space.project_columns(noise)
    row = (1,) * x.ndim + (num_samples,)
    guided = (jnp.arange(num_samples) % 2 == 1).reshape(row)
    column = lambda a: a[..., None]  # noqa: E731
    centre = jnp.where(guided, column(mean), column(x))
    width = jnp.where(guided, jnp.sqrt(spread), jnp.sqrt(variance))
    points = centre + width * noise
    found = evaluate_columns(target, points)

    def log_density(centre, v):  # up to (2π)^{dof/2}, which all terms share
        axes = tuple(range(x.ndim))
        squared = jnp.sum((points - column(centre)) ** 2, axis=axes)
        return -0.5 * squared / v - 0.5 * space.dof * jnp.log(v)

    plain, near = log_density(x, variance), log_density(mean, spread)
    share = (num_samples // 2) / num_samples
    mixture = jnp.logaddexp(plain + jnp.log(1 - share), near + jnp.log(share))
    terms = found.log_density + plain - mixture
    return jax.nn.logsumexp(terms) - jnp.log(float(num_samples)), jnp.sum(found.bad)


def resample(key: PRNGKeyArray, swarm: Swarm, below: float) -> tuple[Swarm, Bool[Array, ""]]:
    """Systematic resampling if the effective share of the weights is lower than `below`.

    Afterwards every particle has the mean weight, so that log mean w does not change.
    """
    n = swarm.log_weight.shape[0]
    total = jax.nn.logsumexp(swarm.log_weight)
    alive = jnp.isfinite(total)
    w = jnp.where(alive, jnp.exp(swarm.log_weight - jnp.where(alive, total, 0.0)), 1 / n)
    needed = alive & (1 / jnp.sum(w**2) < below * n)
    places = (jnp.arange(n).astype(w.dtype) + jax.random.uniform(key)) / n
    chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(w), places), n - 1)
    chosen = jnp.where(needed, chosen, jnp.arange(n))
    picked = jax.tree.map(lambda a: a[chosen], swarm)
    even = jnp.full_like(w, total - jnp.log(float(n)))
    return picked._replace(log_weight=jnp.where(needed, even, picked.log_weight)), needed
