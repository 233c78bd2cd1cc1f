"""How narrow a density is, from its slope: E|∇ log p|² = -E Δ log p for samples of p."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.space import Space


def local_variance(score: Float[Array, "n ..."], space: Space) -> Float[Array, ""]:
    """s² = dof / median |∇ log p|² at n points: that of a normal with the same slopes.

    The median, because a few overlapping particles would decide a mean.
    """
    squared = jnp.sum(score.reshape(len(score), -1) ** 2, axis=1)
    return space.dof / jnp.maximum(jnp.median(squared), jnp.finfo(score.dtype).tiny)
