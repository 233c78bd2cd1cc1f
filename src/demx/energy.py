"""The one door to a target: log-densities and scores of many points, with bad points counted.

log p̃(x) = -E(x): the sign is turned here and nowhere else. One point evaluated, with or
without its gradient, is one energy call.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from demx.types import Target


class Evaluation(NamedTuple):
    """log p̃ and its gradient at N points; `bad` marks where either was not finite."""

    log_density: Float[Array, " N"]
    score: Float[Array, "N ..."]
    bad: Bool[Array, " N"]


def evaluate(target: Target, xs: Float[Array, "N ..."]) -> Evaluation:
    """log p̃(x_i) and ∇log p̃(x_i) for points of shape (N, *space.shape): N energy calls.

    A bad point gets log p̃ = -∞ and score 0, so that no weight can fall on it, and is marked.
    -∞ itself (outside the support) is a legal value of log p̃; NaN, +∞ and a gradient
    that is not finite where log p̃ is, are not.
    """
    fused = getattr(target, "log_density_and_score", None)
    if fused is None:
        log_density, score = jax.vmap(jax.value_and_grad(target.log_density))(xs)
    else:
        log_density, score = fused(xs)
    axes = tuple(range(1, score.ndim))
    legal = jnp.isfinite(log_density) & jnp.all(jnp.isfinite(score), axis=axes)
    outside = log_density == -jnp.inf
    keep = legal.reshape(legal.shape + (1,) * len(axes))
    return Evaluation(
        jnp.where(legal, log_density, -jnp.inf),
        # on a subspace only the gradient along it means anything
        target.space.project(jnp.where(keep, score, 0.0)),
        ~legal & ~outside,
    )


BLOCK = 1 << 15  # floats of a block that stays in the second-level cache with its gradient


def evaluate_blocks(target: Target, xs: Float[Array, "N ..."]) -> Evaluation:
    """`evaluate` in blocks of about BLOCK floats: many large systems would leave the cache.

    The points are spread evenly; what the last block lacks is filled with the last point.
    """
    count, size = xs.shape[0], max(1, xs[0].size)
    blocks = -(-count * size // BLOCK)
    if blocks <= 1:
        return evaluate(target, xs)
    rows = -(-count // blocks)
    index = jnp.minimum(jnp.arange(blocks * rows), count - 1)
    split = xs[index].reshape(blocks, rows, *xs.shape[1:])
    found = jax.lax.map(lambda block: evaluate(target, block), split)
    return jax.tree.map(lambda a: a.reshape(blocks * rows, *a.shape[2:])[:count], found)


def energies(target: Target, xs: Float[Array, "N ..."]) -> Float[Array, " N"]:
    """E(x_i) = -log p̃(x_i), without gradients: N energy calls."""
    return -jax.vmap(target.log_density)(xs)


def pointwise(target: Target) -> Callable[[Array], Array]:
    """log p̃(x) for one x whose gradient comes with it, and whose batches take the fused path.

    For libraries that differentiate and batch a function of one point by themselves: under
    `vmap(value_and_grad(·))` N points are one `evaluate`. A bad point has log p̃ = -∞, so
    that no Metropolis step can end there.
    """

    # the target's arrays are arguments: a closure over traced ones could not be batched
    arrays, rest = eqx.partition(target, eqx.is_array)

    @jax.custom_batching.custom_vmap
    def both(arrays, x):
        found = evaluate(eqx.combine(arrays, rest), x[None])
        return found.log_density[0], found.score[0]

    @both.def_vmap
    def _(size, batched, arrays, xs):
        found = evaluate_blocks(eqx.combine(arrays, rest), xs)
        return (found.log_density, found.score), (True, True)

    @jax.custom_vjp
    def log_density(arrays, x):
        return both(arrays, x)[0]

    def forward(arrays, x):
        value, score = both(arrays, x)
        return value, (arrays, score)

    def backward(kept, cotangent):
        arrays, score = kept
        return jax.tree.map(jnp.zeros_like, arrays), cotangent * score

    log_density.defvjp(forward, backward)
    return lambda x: log_density(arrays, x)
