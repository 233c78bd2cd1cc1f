"""How narrow a density is, from its slope: E|∇ log p|² = -E Δ log p for samples of p."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.energy import Evaluation
from demx.space import Space


def spread(
    x: Float[Array, "n ..."],
    space: Space,
    weight: Float[Array, " n"] | None = None,
    about: float | None = None,
) -> Float[Array, ""]:
    """Σ w_i |x_i - x̄|²/dof: the variance of a degree of freedom over n points, equally weighted
    unless said otherwise; what has weight 0 may be anything, also nan. about: instead of x̄."""
    weight = jnp.ones(len(x), x.dtype) if weight is None else weight
    weight = weight.reshape((-1,) + (1,) * (x.ndim - 1))
    share, x = weight / jnp.sum(weight), jnp.where(weight > 0, x, 0.0)
    centre = jnp.sum(share * x, axis=0, keepdims=True) if about is None else about
    return jnp.sum(share * (x - centre) ** 2) / space.dof


def local_variance(
    found: Evaluation, space: Space, widest: Float[Array, ""] | float
) -> Float[Array, ""]:
    """s² = dof / median |∇ log p|² at points that were evaluated, at most `widest`.

    That of a normal with the same slopes. The median, because a few overlapping particles would
    decide a mean; without the points outside the support; `widest` where the energy is flat.
    """
    slopes = found.score.reshape(len(found.score), -1)
    squared = jnp.where(jnp.isfinite(found.log_density), jnp.sum(slopes**2, axis=1), jnp.nan)
    typical = jnp.nan_to_num(jnp.nanmedian(squared), nan=0.0)
    return space.dof / jnp.maximum(typical, space.dof / widest)
