"""The learned score s_θ(t, x): a network, preconditioned, perhaps pinned to the exact score."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.energy import evaluate
from demx.noise import Noise
from demx.space import Space
from demx.types import Target
from demx.wrappers import shorten


class Plain(eqx.Module):
    """s = F(t, x), loss weight a·σ² + b: the paper's (0 and 1; for mixtures 1 and 1e-3)."""

    variance_weight: float = 0.0
    constant_weight: float = 1.0

    def __check_init__(self) -> None:
        smallest = min(self.variance_weight, self.constant_weight)
        if smallest < 0 or self.variance_weight + self.constant_weight == 0:
            raise ValueError(
                "variance_weight, constant_weight: expected non-negative numbers, not both 0, "
                f"got {self.variance_weight} and {self.constant_weight}"
            )

    def level(self, t: Array, variance: Array) -> Array:
        return t

    def skip(self, variance: Array) -> Array:
        return jnp.zeros_like(variance)

    def shrink(self, variance: Array) -> Array:
        return jnp.ones_like(variance)

    def out(self, variance: Array) -> Array:
        return jnp.ones_like(variance)

    def weight(self, variance: Array) -> Array:
        return self.variance_weight * variance + self.constant_weight

    def prior_variance(self, variance: Array) -> Array:
        return variance


class Denoiser(eqx.Module):
    """s = -x/(σ²+σ_d²) + σ_d/(σ √(σ²+σ_d²)) · F(¼ log(σ²/σ_d²), x/√(σ²+σ_d²)).

    That is s = (D - x)/σ² with D = c_skip x + c_out F(c_in x) of EDM: with F = 0 it is the score of
    a Gaussian of standard deviation σ_d (`sigma_data`), smoothed. The loss weight σ²(σ²+σ_d²)/σ_d²
    makes the regression one on F, with targets of order 1 at every noise level. Samples start
    from N(0, σ²(1) + σ_d²).
    """

    sigma_data: float

    def __check_init__(self) -> None:
        if not self.sigma_data > 0:
            raise ValueError(f"sigma_data: expected a positive number, got {self.sigma_data}")

    def _total(self, variance: Array) -> Array:
        return variance + self.sigma_data**2

    def level(self, t: Array, variance: Array) -> Array:
        return 0.25 * jnp.log(jnp.maximum(variance / self.sigma_data**2, 1e-12))

    def skip(self, variance: Array) -> Array:
        return -1 / self._total(variance)

    def shrink(self, variance: Array) -> Array:
        return jax.lax.rsqrt(self._total(variance))

    def out(self, variance: Array) -> Array:
        # at t = 0 itself the network has no say: its contribution to a step vanishes like σ
        positive = jnp.maximum(variance, 1e-12 * self.sigma_data**2)
        return self.sigma_data * jax.lax.rsqrt(positive * self._total(variance))

    def weight(self, variance: Array) -> Array:
        return variance * self._total(variance) / self.sigma_data**2

    def prior_variance(self, variance: Array) -> Array:
        return self._total(variance)


CACHE = 1 << 16  # floats of one layer's activations: with its gradients half a megabyte

Precondition = Plain | Denoiser
PRECONDITIONS = {"plain": Plain, "denoiser": Denoiser}


class ScoreModel(eqx.Module):
    """s_θ(t, x) = skip(σ²)·x + out(σ²)·F_θ(level, shrink(σ²)·x), projected to the space."""

    network: Callable[[Array, Array], Array]
    precondition: Precondition
    noise: Noise
    space: Space

    @property
    def rows_in_cache(self) -> int:
        """How many configurations a forward and backward pass should take at once.

        Two at least: for a single one XLA makes slower programs.
        """
        return max(2, CACHE // self.network.activations(self.space))

    def __call__(self, t: Float[Array, ""], x: Float[Array, "..."]) -> Float[Array, "..."]:
        rule, v = self.precondition, self.noise.variance(t)
        x = self.space.project(x)
        inner = self.network(rule.level(t, v), rule.shrink(v) * x)
        return self.space.project(rule.skip(v) * x + rule.out(v) * inner)


class Pinned(eqx.Module):
    """(1-γ) s_θ + γ ∇log p̃, γ = v_pin/(v_pin + σ²): the exact score as σ → 0 (paper, §4).

    Every call is one energy call. The exact score is shortened to `max_norm` a vector, as
    the regression targets are.
    """

    model: ScoreModel
    target: Target
    pin_variance: float
    max_norm: float

    def __call__(self, t: Float[Array, ""], x: Float[Array, "..."]) -> Float[Array, "..."]:
        exact, _ = shorten(evaluate(self.target, x[None]).score[0], self.max_norm)
        share = self.pin_variance / (self.pin_variance + self.model.noise.variance(t))
        return (1 - share) * self.model(t, x) + share * self.model.space.project(exact)


Model = TypeVar("Model")


def flatten(model: Model) -> tuple[Array, Callable[[Array], Model]]:
    """All parameters in one vector, and the way back.

    Optimiser and averages then work on one long array instead of dozens of short ones.
    """
    trainable, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(trainable)
    return flat, lambda flat: eqx.combine(unravel(flat), static)


def average(old, new, decay: float, step: Array):
    """Moving average of the parameters, θ̄ += (1-d)(θ - θ̄), d = min(decay, (1+n)/(10+n)).

    The ramp lets the average forget the initial parameters.
    """
    n = step.astype(float)
    rate = 1 - jnp.minimum(decay, (1 + n) / (10 + n))
    return jax.tree.map(lambda a, b: a + rate * (b - a) if eqx.is_inexact_array(a) else b, old, new)
