"""Before chains begin: downhill from anywhere, or points that were given."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from demx.energy import evaluate
from demx.types import Target


def relax(target: Target, x: Array, num_steps: int, scale: Array | float) -> Array:
    """Descent along the score with bounded steps: at most scale/20 a vector, little where flat.

    Takes away what no chain could recover from, such as particles on top of each other.
    """

    def descend(i, x):
        score = evaluate(target, x).score
        length = 0.05 * scale * (1 - i / num_steps)
        # scaled by the largest component: the square of a force of 1e20 overflows
        largest = jnp.max(jnp.abs(score), axis=-1, keepdims=True)
        unit = score / jnp.maximum(largest, jnp.finfo(x.dtype).tiny)
        norm = jnp.maximum(jnp.sqrt(jnp.sum(unit**2, axis=-1, keepdims=True)), 1.0)  # 0: no force
        return x + unit / norm * jnp.minimum(length, 1e-3 * scale**2 * (norm * largest))

    return jax.lax.fori_loop(0, num_steps, descend, x)


def in_turn(points: ArrayLike, target: Target, count: int) -> Float[Array, "count ..."]:
    """One point for each of `count` chains, on the space: again from the first if they end."""
    points = jnp.asarray(points, float)
    return target.space.project(points[jnp.arange(count) % len(points)])
