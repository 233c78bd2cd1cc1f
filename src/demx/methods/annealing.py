"""Annealed SMC along the learned noise levels: weights repair what a learned score gets wrong.

    x' ~ q(x' | x) = N(x + (v - v') s(t, x), spread),    a step of the reverse SDE from v to v'
    w  ← w · p̂_{v'}(x') N(x; x', v - v') / (p̂_v(x) q(x' | x))

p̂_v(x) is a noisy value of the density at noise v, kept with its particle, and p̂_0 = p̃ (a
Feynman-Kac model with random potentials). So the weights are exact whatever the score is:
self-normalised means converge to those of p, and mean(w) is an unbiased estimate of Z, also with
resampling on the way. A bad score costs effective samples, not correctness. What p̂ is on the way is
free: the importance-sampling estimate of ∫ p̃(x_0) N(x_0; x, v) dx_0 as far as it can be trusted, a
normal of the right width where it cannot:

    log p̂ = γ(v) log p̂_IS + (1 - γ(v)) (log N(x; 0, v + s²) + c(v)),  γ(v) = min(1, ½/sd(log p̂_IS))

times the share of the p̂_IS that are not zero; never less than 5 % of the normal: a p̂ of zero would
lose paths that end where p̃ > 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.energy import BLOCK, evaluate, evaluate_columns
from demx.noise import Noise
from demx.sde import posterior_variance, step_variance
from demx.space import Space, log_normal, normal
from demx.stiffness import local_variance, spread
from demx.types import Target

Scores = Callable[[Array, Array], Array]  # of a time and n points
NOISE = 0.5  # standard deviation of log p̂ that weights can bear
FLOOR = -3.0  # of log p̂ against the normal: 5 % of it


class Guide(NamedTuple):
    """What pilot paths tell beforehand. Any finite values with s² > 0 and γ in [0, 1] are correct.

    local_variance: s² of the target around one of its modes; how narrow the guided half of the
    draws behind p̂ is, and the noise of the last step. spread: s² of all its mass. trust: γ, and
    offset: c, at all times but the last.
    """

    local_variance: Float[Array, ""]
    spread: Float[Array, ""]
    trust: Float[Array, " steps"]
    offset: Float[Array, " steps"]


class Swarm(NamedTuple):
    """Particles with what they carry: score and log p̂ at their level, log weight."""

    x: Float[Array, "n ..."]
    score: Float[Array, "n ..."]
    log_smoothed: Float[Array, " n"]
    log_weight: Float[Array, " n"]


class Annealed(NamedTuple):
    """Weighted particles at noise 0; log mean w estimates log Z. bad: energies not finite. lost:
    of weight 0 though not outside the support, by an energy, a score or a place not finite."""

    x: Float[Array, "n ..."]
    log_weight: Float[Array, " n"]
    resampled: Int[Array, ""]
    bad: Int[Array, ""]
    lost: Bool[Array, " n"]


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

    def _estimates(self, key, path: "Path", v, local_variance, x, s) -> tuple[Array, Array]:
        """log p̂_IS at n points, as many at a time as fit the cache, and how many were bad."""
        target, narrow = path.target, posterior_variance(v, local_variance)

        def one(point):
            key, x, s = point
            return log_smoothed(key, target, v, x, x + v * s, narrow, self.num_samples)

        together = max(1, BLOCK // (self.num_samples * x[0].size))
        return jax.lax.map(one, (jax.random.split(key, len(x)), x, s), batch_size=together)

    def run(self, key: PRNGKeyArray, path: "Path", guide: Guide, n: int) -> Annealed:
        """One island of n particles, from the prior to p."""
        target, scores, times, variances = path.target, path.scores, path.times, path.variances
        space = target.space
        key_start, key_smooth, key_levels, key_last, key_order = jax.random.split(key, 5)

        def smoothed(key, v, trust, offset, x, s):
            found, wrong = self._estimates(key, path, v, guide.local_variance, x, s)
            rough = jax.vmap(lambda x: log_normal(space, x, v + guide.spread))(x) + offset
            # 0·(-∞): no trust in an estimate of zero
            mixed = jnp.where(trust > 0, trust * found, 0.0) + (1 - trust) * rough
            return jnp.logaddexp(mixed, rough + FLOOR), jnp.sum(wrong)

        def level(carry, now):
            swarm, bad, count = carry
            key, t, v, v_next, trust, offset = now
            key_move, key_estimate, key_choose = jax.random.split(key, 3)
            x, ratio = _moved(key_move, space, swarm, v, v_next, guide.local_variance)
            s = scores(t, x)
            log_p, wrong = smoothed(key_estimate, v_next, trust, offset, x, s)
            swarm = Swarm(x, s, log_p, _updated(swarm, log_p + ratio))
            swarm, chosen = resample(key_choose, swarm, self.resample_below)
            return (swarm, bad + wrong, count + chosen.astype(int)), None

        x = path.prior(key_start, n)
        s = scores(times[0], x)
        log_p, bad = smoothed(key_smooth, variances[0], guide.trust[0], guide.offset[0], x, s)
        weight = log_p - jax.vmap(lambda x: log_normal(space, x, path.prior_variance))(x)
        start = Swarm(x, s, log_p, weight), bad, jnp.zeros((), int)
        keys = jax.random.split(key_levels, len(times) - 2)
        levels = (times[1:-1], variances[:-2], variances[1:-1], guide.trust[1:], guide.offset[1:])
        (swarm, bad, count), _ = jax.lax.scan(level, start, (keys, *levels))
        x, ratio = _moved(key_last, space, swarm, *variances[-2:], guide.local_variance)
        exact = evaluate(target, x)
        weight = _updated(swarm, exact.log_density + ratio)
        outside = jnp.isneginf(exact.log_density) & ~exact.bad & _finite(x)
        lost = jnp.isneginf(weight) & ~outside
        order = jax.random.permutation(key_order, n)  # resampled copies stand side by side
        bad += jnp.sum(exact.bad)
        return Annealed(x[order], weight[order], count, bad, lost[order])

    def survey(self, key: PRNGKeyArray, path: "Path", n: int) -> Guide:
        """The guide, from n pilot paths: how narrow p is where they end, and how well two
        estimates of p̂ agree on their way.

        n·(1 + 2·num_samples·steps) energy calls. The pilots are independent of the particles that
        use the guide, so the estimate of Z stays unbiased.
        """
        space, variances = path.target.space, path.variances

        def walk(x, now):
            key, t, v, v_next = now
            s = path.scores(t, x)
            z = normal(key, space, (n,))
            return x + (v - v_next) * s + jnp.sqrt(step_variance(v, v_next, 0.0)) * z, (x, s)

        key_start, key_walk, key_levels = jax.random.split(key, 3)
        keys = jax.random.split(key_walk, len(path.times) - 1)
        steps = (keys, path.times[:-1], variances[:-1], variances[1:])
        end, (xs, scores) = jax.lax.scan(walk, path.prior(key_start, n), steps)
        # one pilot that is lost must not be the spread of all
        finite = _finite(end).astype(end.dtype)
        some = jnp.where(jnp.sum(finite) > 0, spread(end, space, finite), 0.0)
        wide = jnp.maximum(some, jnp.finfo(end.dtype).tiny)
        narrow = local_variance(evaluate(path.target, end), space, wide)

        def level(now):
            key, v, x, s = now
            first, second = (
                self._estimates(key, path, v, narrow, x, s)[0] for key in jax.random.split(key)
            )
            # an estimate of zero, or of a pilot that is lost, tells no difference
            told = jnp.isfinite(first) & jnp.isfinite(second)
            share = jnp.mean(told.astype(first.dtype))
            squared = jnp.where(told, first - second, 0.0) ** 2
            sd = jnp.sqrt(jnp.mean(squared) / (2 * jnp.maximum(share, 1 / n)))
            rough = jax.vmap(lambda x: log_normal(space, x, v + wide))(x)
            offset = jnp.nanmedian(jnp.where(told, first - rough, jnp.nan))
            return share * jnp.minimum(1.0, NOISE / sd), jnp.nan_to_num(offset, nan=0.0)

        keys = jax.random.split(key_levels, len(path.times) - 1)
        trust, offset = jax.lax.map(level, (keys, variances[:-1], xs, scores))
        return Guide(narrow, wide, trust, offset)


class Path(eqx.Module):
    """What is annealed along: falling times to 0, a score of n points at each, a normal start."""

    target: Target
    scores: Scores
    noise: Noise
    times: Float[Array, " levels"]
    prior_variance: Float[Array, ""] | float

    @property
    def variances(self) -> Float[Array, " levels"]:
        return jax.vmap(self.noise.variance)(self.times)

    def prior(self, key: PRNGKeyArray, n: int) -> Array:
        return jnp.sqrt(self.prior_variance) * normal(key, self.target.space, (n,))


def _finite(x: Float[Array, "n ..."]) -> Bool[Array, " n"]:
    """Which points have finite coordinates, also when they are squared."""
    return jnp.isfinite(jnp.sum(x.reshape(len(x), -1) ** 2, axis=1))


def _moved(key, space: Space, swarm: Swarm, v, v_next, local_variance) -> tuple[Array, Array]:
    """The next points, and log N(x; x', v - v') - log q(x' | x)."""
    variance = step_variance(v, v_next, local_variance)
    z = normal(key, space, (len(swarm.x),))
    x = swarm.x + (v - v_next) * swarm.score + jnp.sqrt(variance) * z
    back = jax.vmap(lambda d: log_normal(space, d, v - v_next))(swarm.x - x)
    forth = jax.vmap(lambda z: log_normal(space, z, 1.0))(z) - 0.5 * space.dof * jnp.log(variance)
    return x, back - forth


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
    sums = jnp.cumsum(w)
    # up to their own last value, which rounding may leave below 1: nobody of weight 0 is chosen
    places = sums[-1] * (jnp.arange(n).astype(w.dtype) + jax.random.uniform(key)) / n
    chosen = jnp.minimum(jnp.searchsorted(sums, places), n - 1)
    chosen = jnp.where(needed, chosen, jnp.arange(n))
    picked = jax.tree.map(lambda a: a[chosen], swarm)
    even = jnp.full_like(w, total - jnp.log(float(n)))
    return picked._replace(log_weight=jnp.where(needed, even, picked.log_weight)), needed
