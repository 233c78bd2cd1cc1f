"""Estimates of the score of the smoothed target, ∇log p_t(x_t), from K energy calls (paper, §3.1).

With x_i = x_t + σ ε_i and self-normalised weights w_i ∝ exp(-E(x_i)):

    target score identity     S = -Σ w_i ∇E(x_i)          (the paper's S_K, eq. 8 and 9)
    denoising score identity  S =  Σ w_i (x_i - x_t)/σ²   (paper, app. C)

An estimator is a function (noise, target, variance, x_t, x_0) -> Estimate for one point, where
noise is the (*shape, K) block of standard normals ε; wrappers turn estimators into estimators.
Sums over K are streamed in blocks: beyond the noise itself, memory does not grow with K.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from demx.energy import evaluate_columns
from demx.space import Space
from demx.types import Target

BLOCK = 1 << 16  # floats of one (*shape, K) block: it stays in the second-level cache


class Estimate(NamedTuple):
    """A score and what is known about it.

    variance: estimated variance of the score, summed over its components (delta method); nan where
    it is not known.
    ess: effective share of the K weights, in (0, 1]. bad: evaluations that were not finite.
    clipped: share of the vectors of the score (one a particle) that were shortened.
    """

    score: Float[Array, "..."]
    variance: Float[Array, ""]
    ess: Float[Array, ""]
    bad: Int[Array, ""]
    clipped: Float[Array, ""]


@runtime_checkable
class Estimator(Protocol):
    """One point's estimate; `cost` is the number of energy calls for each of the K samples.

    One whose average is linear in ε and ∇log p̃ may offer `shared(noise, target, variance, x)` for
    R points (R, *shape) that share a block of noise, on targets that offer `shaken`.
    """

    @property
    def cost(self) -> int: ...

    def __call__(
        self, noise: Array, target: Target, variance: Array, x: Array, x_0: Array
    ) -> Estimate: ...


class _Sums(NamedTuple):
    """Streamed sums over the samples, relative to exp(shift). f is the quantity averaged."""

    shift: Array  # the largest log-density so far
    w: Array  # Σ w
    w2: Array  # Σ w²
    wf: Array  # Σ w f
    w2f: Array  # Σ w² f
    w2f2: Array  # Σ w² |f|²
    bad: Array


def _stream(noise, target, sigma, x, quantity, shift_of) -> _Sums:
    """Sums over all samples, block by block; `quantity(score, ε) -> f` says what is averaged."""
    count = noise.shape[-1]
    most = max(1, BLOCK // max(1, x.size))
    block = -(-count // -(-count // most))  # as few blocks as there must be, of equal size
    num_blocks, rest = divmod(count, block)

    def block_sums(epsilon: Array) -> _Sums:
        log_density, score, bad = evaluate_columns(target, x[..., None] + sigma * epsilon)
        f = quantity(score, epsilon).reshape(x.size, -1)
        shift = shift_of(log_density)
        w = jnp.exp(log_density - shift)
        w2 = w * w
        return _Sums(
            shift,
            jnp.sum(w),
            jnp.sum(w2),
            (f @ w).reshape(x.shape),
            (f @ w2).reshape(x.shape),
            jnp.sum(w2 * jnp.sum(f * f, axis=0)),
            jnp.sum(bad),
        )

    def merge(a: _Sums, b: _Sums) -> _Sums:
        # a block wholly outside the support (w = 0) has no say in the common shift
        shift = jnp.maximum(
            jnp.where(a.w > 0, a.shift, -jnp.inf), jnp.where(b.w > 0, b.shift, -jnp.inf)
        )
        shift = jnp.where(jnp.isfinite(shift), shift, 0.0)
        p = jnp.where(a.w > 0, jnp.exp(jnp.minimum(a.shift - shift, 0.0)), 0.0)
        q = jnp.where(b.w > 0, jnp.exp(jnp.minimum(b.shift - shift, 0.0)), 0.0)
        return _Sums(
            shift,
            p * a.w + q * b.w,
            p * p * a.w2 + q * q * b.w2,
            p * a.wf + q * b.wf,
            p * p * a.w2f + q * q * b.w2f,
            p * p * a.w2f2 + q * q * b.w2f2,
            a.bad + b.bad,
        )

    def take(start, size):
        return jax.lax.dynamic_slice_in_dim(noise, start, size, axis=-1)

    def add(i, sums: _Sums) -> _Sums:
        return merge(sums, block_sums(take(i * block, block)))

    sums = block_sums(take(0, block))
    if num_blocks > 1:
        sums = jax.lax.fori_loop(1, num_blocks, add, sums)
    if rest:
        sums = merge(sums, block_sums(take(num_blocks * block, rest)))
    return sums


def _normalise(sums: _Sums, count: int, space: Space) -> Estimate:
    """Σ w f / Σ w with the delta-method variance Σ w² |f - S|² / (Σ w)²."""
    total = jnp.where(sums.w > 0, sums.w, jnp.nan)  # no sample inside the support: no estimate
    score = space.project(sums.wf / total)
    spread = sums.w2f2 - 2 * jnp.sum(score * sums.w2f) + jnp.sum(score**2) * sums.w2
    return Estimate(
        score,
        jnp.maximum(spread, 0.0) / total**2,
        total**2 / (count * sums.w2),
        sums.bad,
        jnp.zeros_like(total),
    )


def _largest(log_density: Array) -> Array:
    """The shift of log-sum-exp; 0 where every sample is outside the support."""
    largest = jnp.max(log_density)
    return jnp.where(jnp.isfinite(largest), largest, 0.0)


def _shared(noise: Array, target: Target, variance: Array, x: Array, average) -> Estimate:
    """Estimates at points x_r, (R, *shape), that share one block of noise.

    average: (w, pull) ↦ Σ_k w_rk f_rk, of the normalised weights and w ↦ Σ_k w_rk ∇log p̃(x_rk). The
    gradients of single samples are never made: the variance is not known, and a bad gradient
    where the energy is good is only noticed, as one bad evaluation, if it spoils the score.
    """
    log_density, pull = target.shaken(x, jnp.sqrt(variance), noise)
    legal = jnp.isfinite(log_density)
    bad = jnp.sum(~legal & (log_density != -jnp.inf), axis=1)
    log_density = jnp.where(legal, log_density, -jnp.inf)
    w = jnp.exp(log_density - jax.vmap(_largest)(log_density)[:, None])
    total = jnp.sum(w, axis=1)
    w = w / jnp.where(total > 0, total, jnp.nan)[:, None]
    score = target.space.project(average(w, pull))
    spoiled = ~jnp.all(jnp.isfinite(score), axis=tuple(range(1, x.ndim))) & (total > 0)
    share = 1 / (noise.shape[-1] * jnp.sum(w * w, axis=1))
    unknown = jnp.full_like(variance, jnp.nan)
    return Estimate(score, unknown, share, bad + spoiled.astype(int), jnp.zeros_like(variance))


class LogSumExp(eqx.Module):
    """S_K = ∇_{x_t} log Σ_i exp(-E(x_i)) = -Σ w_i ∇E(x_i) (paper, eq. 8 and 9)."""

    cost = 1

    def shared(self, noise, target, variance, x) -> Estimate:
        """At R points that share a block of noise."""
        return _shared(noise, target, variance, x, lambda w, pull: pull(w))

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        sums = _stream(noise, target, jnp.sqrt(variance), x, lambda s, e: s, _largest)
        return _normalise(sums, noise.shape[-1], target.space)


class Ratio(eqx.Module):
    """The same ratio without the log-sum-exp shift (paper, app. G.3).

    exp(-E) under- or overflows where |E| is large, and the estimate is then nan: kept as the
    paper's ablation has it.
    """

    cost = 1

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        def no_shift(log_density):
            return jnp.zeros_like(log_density[0])

        sums = _stream(noise, target, jnp.sqrt(variance), x, lambda s, e: s, no_shift)
        return _normalise(sums, noise.shape[-1], target.space)


class Jensen(eqx.Module):
    """S = -(1/σ²) mean E(x_i) (x_i - x_t), gradient-free and biased (paper, app. G.3)."""

    cost = 1

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        sigma = jnp.sqrt(variance)
        log_density, _, bad = evaluate_columns(target, x[..., None] + sigma * noise)
        usable = jnp.isfinite(log_density)
        # a constant added to E changes nothing in the mean; the mean energy as one cuts the noise
        share = usable.astype(x.dtype) / jnp.maximum(jnp.sum(usable), 1).astype(x.dtype)
        level = jnp.sum(jnp.where(usable, log_density, 0.0) * share)
        centred = jnp.where(usable, log_density - level, 0.0)
        shape = (1,) * x.ndim + (-1,)
        terms = centred.reshape(shape) * noise / sigma
        score = jnp.sum(share.reshape(shape) * terms, axis=-1)
        spread = jnp.sum((terms - score[..., None]) ** 2) / float(noise.shape[-1]) ** 2
        return Estimate(score, spread, jnp.ones_like(sigma), jnp.sum(bad), jnp.zeros_like(sigma))


class Mixed(eqx.Module):
    """(1-c)·TSI + c·DSI under the same weights, c = σ²/(σ² + s²): a control variate.

    For a Gaussian of variance s² the two identities cancel each other's noise exactly; s²
    (`local_variance`) is the variance of the target around one of its modes
    (CVSI, arXiv 2512.20003; target score matching, arXiv 2402.08667).
    """

    local_variance: float
    cost = 1

    def __check_init__(self) -> None:
        if not self.local_variance > 0:
            raise ValueError(f"local_variance: expected positive, got {self.local_variance}")

    def _parts(self, variance: Array) -> tuple[Array, Array]:
        """1 - c and c/σ; the latter written so that nothing divides by σ → 0."""
        total = variance + self.local_variance
        return 1 - variance / total, jnp.sqrt(variance) / total

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        a, b = self._parts(variance)
        mix = lambda score, epsilon: a * score + b * epsilon  # noqa: E731
        sums = _stream(noise, target, jnp.sqrt(variance), x, mix, _largest)
        return _normalise(sums, noise.shape[-1], target.space)

    def shared(self, noise, target, variance, x) -> Estimate:
        """At R points that share a block of noise."""
        column = lambda v: v.reshape((-1,) + (1,) * (x.ndim - 1))  # noqa: E731
        a, b = (column(part) for part in self._parts(variance))
        flat = noise.reshape(-1, noise.shape[-1])
        mix = lambda w, pull: a * pull(w) + b * (w @ flat.T).reshape(x.shape)  # noqa: E731
        return _shared(noise, target, variance, x, mix)


ESTIMATORS = {"log_sum_exp": LogSumExp, "ratio": Ratio, "jensen": Jensen, "mixed": Mixed}
