"""Wrappers that turn a score estimator into another: keep x_0, extrapolate in K, clip."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.estimator import Estimate, Estimator
from demx.space import Space


class Conditional(eqx.Module):
    """Keep the point x_0 that made x_t among the K samples, under the same weights.

    If x_0 follows p_0 it is an exact draw of the posterior p(x_0 | x_t), and the weighted mean
    loses the bias of self-normalisation: conditional importance sampling. Where importance
    sampling fails this is denoising score matching, where it works it is S_K. In an antithetic
    block the partner of x_0 becomes its mirror image, or the argument would not hold.
    """

    estimator: Estimator

    @property
    def cost(self) -> int:
        return self.estimator.cost

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        tiny = jnp.finfo(x.dtype).tiny
        kept = (x_0 - x) / jnp.sqrt(jnp.maximum(variance, tiny))
        # an x_0 of nan says that no point made x_t: nothing to keep
        known, kept = jnp.all(jnp.isfinite(kept)), jnp.where(jnp.isfinite(kept), kept, 0.0)
        half = (noise.shape[-1] + 1) // 2
        if half < noise.shape[-1]:
            # antithetic blocks are [ε, -ε]; independent draws are never exact mirrors
            mirrored = known & jnp.all(noise[..., half] == -noise[..., 0])
            noise = noise.at[..., half].set(jnp.where(mirrored, -kept, noise[..., half]))
        noise = noise.at[..., 0].set(jnp.where(known, kept, noise[..., 0]))
        return self.estimator(noise, target, variance, x, x_0)


class Richardson(eqx.Module):
    """2 S_K - S_{K/2}: takes out the O(1/K) bias, at twice the energy calls for the same K.

    S_{K/2} is the mean over the block's even and odd samples, which halves its variance and
    keeps both halves of an antithetic block in each. The variance given is that of S_K.
    """

    estimator: Estimator

    @property
    def cost(self) -> int:
        return 2 * self.estimator.cost

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        if noise.shape[-1] < 2:
            raise ValueError("richardson: expected num_samples of at least 2, got 1")
        whole = self.estimator(noise, target, variance, x, x_0)
        first = self.estimator(noise[..., 0::2], target, variance, x, x_0)
        second = self.estimator(noise[..., 1::2], target, variance, x, x_0)
        score = 2 * whole.score - 0.5 * (first.score + second.score)
        return whole._replace(score=score, bad=whole.bad + first.bad + second.bad)


def shorten(vectors: Array, bound: Array | float) -> tuple[Array, Array]:
    """Vectors (last axis) cut to length `bound`, and which were longer; safe for huge ones."""
    # scaled by the largest component: the square of a force of 1e20 overflows
    largest = jnp.max(jnp.abs(vectors), axis=-1, keepdims=True)
    largest = jnp.maximum(largest, jnp.finfo(vectors.dtype).tiny)
    unit = vectors / largest
    length = jnp.linalg.norm(unit, axis=-1, keepdims=True)
    over = length > bound / largest
    return jnp.where(over, unit * (bound / jnp.maximum(length, 0.5)), vectors), over


class Clipped(eqx.Module):
    """Shorten each vector of the score to min(max_norm, max_sigmas/σ), and count how often.

    A vector is the last axis: the whole score in R^d, one particle's share of it in a cluster
    (as behind the published numbers). max_sigmas bounds the step to the denoised point, σ²|S|, in
    units of σ. The true score is -E[ε | x_t]/σ for the noise ε that made x_t, and a standard
    normal of three components is longer than 4 once in a thousand; the noise of S_K knows no such
    bound. Far from where the noising process goes (x_t not from p_t) true scores are cut too.
    """

    estimator: Estimator
    max_norm: float = float("inf")
    max_sigmas: float = float("inf")

    def __check_init__(self) -> None:
        if not (self.max_norm > 0 and self.max_sigmas > 0):
            raise ValueError(
                "max_norm, max_sigmas: expected positive numbers, "
                f"got {self.max_norm} and {self.max_sigmas}"
            )

    @property
    def cost(self) -> int:
        return self.estimator.cost

    def __call__(self, noise, target, variance, x, x_0) -> Estimate:
        return self.clip(self.estimator(noise, target, variance, x, x_0), target.space, variance)

    @property
    def shared(self):
        """That of the estimator inside, shortened; None if it has none."""
        inner = getattr(self.estimator, "shared", None)
        if inner is None:
            return None

        def shortened(noise, target, variance, x) -> Estimate:
            clip = lambda estimate, v: self.clip(estimate, target.space, v)  # noqa: E731
            return jax.vmap(clip)(inner(noise, target, variance, x), variance)

        return shortened

    def clip(self, estimate: Estimate, space: Space, variance: Float[Array, ""]) -> Estimate:
        """The estimate at one point, shortened."""
        tiny = jnp.finfo(variance.dtype).tiny
        sigma = jnp.sqrt(jnp.maximum(variance, tiny))
        bound = jnp.minimum(self.max_norm, self.max_sigmas / sigma)
        shortened, over = shorten(space.project(estimate.score), bound)
        return estimate._replace(
            score=space.project(shortened), clipped=jnp.mean(over.astype(variance.dtype))
        )


WRAPPERS = {"conditional": Conditional, "richardson": Richardson}
