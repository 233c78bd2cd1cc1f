"""How a target is smoothed: p_t = p_0 * N(0, σ²(t)), t in [0, 1] (paper, §2.2).

Every noising process is used in its variance-exploding form. A linear SDE
dx = -α(t) x dt + g(t) dw becomes one for y = β(t) x with β(t) = exp(+∫_0^t α):

    dy = β(t) g(t) dw,   σ²(t) = ∫_0^t β² g²,   x = y / β = scale(t)·y.

(The paper's appendix B writes exp(-∫α), with which the drift does not cancel, and drops
the Jacobian: ∇_x log p_t(x) = β(t) ∇_y log p̃_t(y).) Estimators, networks and the reverse
SDE see y; x = scale(t)·y is what a linear SDE itself would show.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Time = Float[Array, ""]


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")


class Geometric(eqx.Module):
    """σ²(t) = σ_min² ((σ_max/σ_min)^{2t} - 1): log-uniform in σ above σ_min, exactly 0 at t = 0.

    The paper's σ(t) = σ_min (σ_max/σ_min)^t without its offset, as behind the published numbers.
    """

    sigma_min: float
    sigma_max: float

    def __check_init__(self) -> None:
        _positive(sigma_min=self.sigma_min)
        if not self.sigma_max > self.sigma_min:
            raise ValueError(
                f"sigma_max: expected more than sigma_min = {self.sigma_min}, got {self.sigma_max}"
            )

    @property
    def _log_ratio(self) -> float:
        return float(np.log(self.sigma_max / self.sigma_min))

    def variance(self, t: Time) -> Time:
        return self.sigma_min**2 * jnp.expm1(2 * self._log_ratio * t)

    def diffusion(self, t: Time) -> Time:
        return self.sigma_min * (2 * self._log_ratio) ** 0.5 * jnp.exp(self._log_ratio * t)

    def scale(self, t: Time) -> Time:
        return jnp.ones_like(t)

    def time(self, variance: Time) -> Time:
        return jnp.log1p(variance / self.sigma_min**2) / (2 * self._log_ratio)


class Linear(eqx.Module):
    """σ²(t) = σ_max² t: Brownian motion."""

    sigma_max: float

    def __check_init__(self) -> None:
        _positive(sigma_max=self.sigma_max)

    def variance(self, t: Time) -> Time:
        return self.sigma_max**2 * t

    def diffusion(self, t: Time) -> Time:
        return self.sigma_max * jnp.ones_like(t)

    def scale(self, t: Time) -> Time:
        return jnp.ones_like(t)

    def time(self, variance: Time) -> Time:
        return variance / self.sigma_max**2


class VariancePreserving(eqx.Module):
    """dx = -½ b(t) x dt + √b(t) dw, b(t) = b_min + (b_max - b_min) t.

    With B(t) = ∫_0^t b: scale = exp(-B/2), and y has σ²(t) = exp(B(t)) - 1.
    """

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __check_init__(self) -> None:
        _positive(beta_min=self.beta_min)
        if not self.beta_max > self.beta_min:
            raise ValueError(
                f"beta_max: expected more than beta_min = {self.beta_min}, got {self.beta_max}"
            )

    def _integral(self, t: Time) -> Time:
        return self.beta_min * t + 0.5 * (self.beta_max - self.beta_min) * t**2

    def variance(self, t: Time) -> Time:
        return jnp.expm1(self._integral(t))

    def diffusion(self, t: Time) -> Time:
        rate = self.beta_min + (self.beta_max - self.beta_min) * t
        return jnp.sqrt(rate * jnp.exp(self._integral(t)))

    def scale(self, t: Time) -> Time:
        return jnp.exp(-0.5 * self._integral(t))

    def time(self, variance: Time) -> Time:
        slope = self.beta_max - self.beta_min
        integral = jnp.log1p(variance)
        # the root of the quadratic, written so that nothing cancels as t → 0
        return 2 * integral / (self.beta_min + jnp.sqrt(self.beta_min**2 + 2 * slope * integral))


class LinearSDE(eqx.Module):
    """Any dx = -α(t) x dt + g(t) dw, by Gauss-Legendre quadrature of ∫α and of ∫β²g²."""

    alpha: Callable[[Time], Time]
    g: Callable[[Time], Time]

    def _integrate(self, function: Callable[[Time], Time], t: Time) -> Time:
        nodes, weights = np.polynomial.legendre.leggauss(24)
        points = 0.5 * t * jnp.asarray(nodes + 1, t.dtype)
        return 0.5 * t * jnp.sum(jnp.asarray(weights, t.dtype) * jax.vmap(function)(points))

    def scale(self, t: Time) -> Time:
        return jnp.exp(-self._integrate(self.alpha, t))

    def diffusion(self, t: Time) -> Time:
        return self.g(t) / self.scale(t)

    def variance(self, t: Time) -> Time:
        return self._integrate(lambda s: self.diffusion(s) ** 2, t)

    def time(self, variance: Time) -> Time:
        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            above = self.variance(middle) > variance
            return jnp.where(above, low, middle), jnp.where(above, middle, high)

        low, high = jax.lax.fori_loop(
            0, 40, halve, (jnp.zeros_like(variance), jnp.ones_like(variance))
        )
        return 0.5 * (low + high)


Noise = Geometric | Linear | VariancePreserving | LinearSDE
NOISES = {
    "geometric": Geometric,
    "linear": Linear,
    "variance_preserving": VariancePreserving,
}
