"""Stray points: where the sampler errs to, and the noising process never goes.

A share of the regression points lies κ > 1 times as far from x_0 as their noise level says,
x_t = x_0 + κ σ ε, and is still asked for the score at level σ. The sampler then finds back when it
has strayed, instead of meeting inputs that it has never seen. At low noise what needs no x_0 knows
the way, S_K alone or a walk that begins at x_t; at high noise, where these see nothing, the kept
x_0 does.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Strays(eqx.Module):
    """share: of the points that stray, κ uniform between `near` and `far`.

    `near` is well above 1: in many dimensions the noise's length hardly varies, so that
    strays are told from the others, whose better targets they must not dilute. local_sigma: below
    it the strays' x_0 is not kept.
    """

    share: float = 0.1
    near: float = 1.5
    far: float = 3.0
    local_sigma: float = 0.3

    def __check_init__(self) -> None:
        if not (0 <= self.share <= 1 and 1 < self.near < self.far and self.local_sigma >= 0):
            raise ValueError(
                "expected share between 0 and 1, 1 < near < far and local_sigma >= 0, got "
                f"share={self.share}, near={self.near}, far={self.far}, "
                f"local_sigma={self.local_sigma}"
            )

    def factors(self, key: PRNGKeyArray, count: int) -> Float[Array, " count"]:
        """How many times too far out each point goes: 1 for all but the strays."""
        key_coin, key_far = jax.random.split(key)
        stray = jax.random.bernoulli(key_coin, self.share, (count,))
        out = jax.random.uniform(key_far, (count,), minval=self.near, maxval=self.far)
        return jnp.where(stray, out, 1.0)

    def origins(self, x_0: Array, factor: Array, variance: Array) -> Array:
        """x_0, and nan (nothing to keep) for the strays at low noise."""
        forget = (factor > 1) & (variance < self.local_sigma**2)
        return jnp.where(forget.reshape((-1,) + (1,) * (x_0.ndim - 1)), jnp.nan, x_0)
