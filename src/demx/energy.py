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
    """log p̃ and its gradient at N points; `bad` marks where either was not finite.

    The score is (N, *shape) from `evaluate`, (*shape, N) from `evaluate_columns`.
    """

    log_density: Float[Array, " N"]
    score: Float[Array, "..."]
    bad: Bool[Array, " N"]


def evaluate(target: Target, xs: Float[Array, "N ..."]) -> Evaluation:
    """log p̃(x_i) and ∇log p̃(x_i) for points of shape (N, *space.shape): N energy calls.

    A bad point gets log p̃ = -∞ and score 0, so that no weight can fall on it, and is marked.
    -∞ itself (outside the support) is a legal value of log p̃; NaN, +∞ and a gradient
    that is not finite where log p̃ is, are not.
    """
    found = _columns(target, jnp.moveaxis(xs, 0, -1))
    return found._replace(score=target.space.project(jnp.moveaxis(found.score, -1, 0)))


def evaluate_columns(target: Target, xs: Float[Array, "... N"]) -> Evaluation:
    """`evaluate` for points along the last axis, (*space.shape, N): the layout for speed.

    Arithmetic then runs over long contiguous rows. Batches of such blocks (under `vmap`) are laid
    side by side, so that rows are long also where the blocks are narrow; in return there
    is no derivative of this function (there is of `evaluate`).
    """
    # the target's arrays are arguments: a closure over traced ones could not be batched
    arrays, rest = eqx.partition(target, eqx.is_array)

    @jax.custom_batching.custom_vmap
    def columns(arrays, xs):
        return _columns(eqx.combine(arrays, rest), xs)

    @columns.def_vmap
    def _(size, batched, arrays, xs):
        if any(jax.tree.leaves(batched[0])):
            axes = jax.tree.map(lambda b: 0 if b else None, batched)
            one = lambda arrays, xs: _columns(eqx.combine(arrays, rest), xs)  # noqa: E731
            return jax.vmap(one, axes)(arrays, xs), Evaluation(True, True, True)
        count = xs.shape[-1]
        wide = jnp.moveaxis(xs, 0, -2).reshape(*xs.shape[1:-1], size * count)
        found = evaluate_columns(eqx.combine(arrays, rest), wide)
        score = found.score.reshape(*xs.shape[1:-1], size, count)
        split = Evaluation(
            found.log_density.reshape(size, count),
            jnp.moveaxis(score, -2, 0),
            found.bad.reshape(size, count),
        )
        return split, Evaluation(True, True, True)

    return columns(arrays, xs)


def _columns(target: Target, xs: Array) -> Evaluation:
    fused = getattr(target, "log_density_and_score", None)
    if fused is None:
        # on a subspace only the gradient along it means anything
        along = lambda x: target.log_density(target.space.project(x))  # noqa: E731
        log_density, score = jax.vmap(jax.value_and_grad(along), -1, (0, -1))(xs)
    else:
        log_density, score = fused(xs)
        if log_density.shape != xs.shape[-1:] or score.shape != xs.shape:
            raise ValueError(
                f"log_density_and_score: expected shapes {xs.shape[-1:]} and {xs.shape} for points "
                f"along the last axis, {xs.shape}; got {log_density.shape} and {score.shape}"
            )
    # 0·s is nan where s is not finite: one pass over the scores instead of a mask of their size
    finite = jnp.isfinite(jnp.sum(0.0 * score, axis=tuple(range(score.ndim - 1))))
    legal = jnp.isfinite(log_density) & finite
    outside = log_density == -jnp.inf
    keep = legal.reshape((1,) * (score.ndim - 1) + (-1,))
    return Evaluation(
        jnp.where(legal, log_density, -jnp.inf), jnp.where(keep, score, 0.0), ~legal & ~outside
    )


BLOCK = 1 << 15  # floats of a block that stays in the second-level cache with its gradient


def evaluate_blocks(target: Target, xs: Float[Array, "N ..."]) -> Evaluation:
    """`evaluate` in blocks of about BLOCK floats: many large systems would leave the cache.

    The points are spread evenly; the last block is what is left, so that none is asked twice.
    """
    count, size = xs.shape[0], max(1, xs[0].size)
    blocks = -(-count * size // BLOCK)
    if blocks <= 1:
        return evaluate(target, xs)
    rows = -(-count // blocks)
    whole = count // rows * rows
    split = xs[:whole].reshape(-1, rows, *xs.shape[1:])
    found = jax.lax.map(lambda block: evaluate(target, block), split)
    found = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), found)
    if whole == count:
        return found
    rest = evaluate(target, xs[whole:])
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found, rest)


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
