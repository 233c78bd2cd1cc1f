"""Every pair of n particles once: (i, i + k mod n) for the offsets k = 1, …, P = n//2.

Arrays over pairs have the shape (P, n, …). If n is even the pairs of the last offset appear twice,
and count half (`shares`). Only whole rows are moved: no gather and no scatter of single pairs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Exchange = Callable[[Any, Any, Any], tuple[Any, Any]]


def shares(n: int) -> Float[Array, " P"]:
    """1 for every offset; ½ for the last if n is even."""
    count = n // 2
    return jnp.asarray(np.where((np.arange(1, count + 1) * 2) == n, 0.5, 1.0), float)


def _later(nodes: Any, offset: Array) -> Any:
    """Row i + offset of nodes that stand twice in a row, (2n, …)."""
    count = jax.tree.leaves(nodes)[0].shape[0] // 2
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, offset, count), nodes)


def _twice(nodes: Any) -> Any:
    return jax.tree.map(lambda a: jnp.concatenate([a, a]), nodes)


def _folded(here: Any, twice: Any) -> Any:
    """What was sent to particle i, and to the particles i and n + i of two turns."""
    return jax.tree.map(lambda a, b: a + b[: len(a)] + b[len(a) :], here, twice)


def _sent(twice: Any, offset: Array, what: Any) -> Any:
    """twice[i + offset] += what[i], in place."""

    def add(a, b):
        moved = jax.lax.dynamic_slice_in_dim(a, offset, len(b)) + b
        return jax.lax.dynamic_update_slice_in_dim(a, moved, offset, axis=0)

    return jax.tree.map(add, twice, what)


def _zeros(shapes: Any, rows: int | None = None) -> Any:
    def zero(s):
        return jnp.zeros(s.shape if rows is None else (rows, *s.shape[1:]), s.dtype)

    return jax.tree.map(zero, shapes)


def _first(pairs: Any, offset: Array) -> Any:
    at = lambda a: jax.lax.dynamic_index_in_dim(a, offset - 1, keepdims=False)  # noqa: E731
    return jax.tree.map(at, pairs)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gathered(exchange: Exchange, pairs: Any, nodes: Any) -> Any:
    """Σ over all pairs of what `exchange(pair, at_i, at_j) -> (to_i, to_j)` sends to each end.

    pairs: a tree of (P, n, …), nodes: of (n, …); exchange gets those of n pairs of one offset at
    a time, and works elementwise in them. What it sends is never kept: offset by offset it is
    added to sums of n rows, which stay in the first-level cache, and so are the cotangents.
    """
    count, twice = jax.tree.leaves(pairs)[0].shape[0], _twice(nodes)
    shapes, _ = jax.eval_shape(exchange, _first(pairs, jnp.ones((), int)), nodes, nodes)

    def add(offset, sums):
        here, there = sums
        to_first, to_second = exchange(_first(pairs, offset), nodes, _later(twice, offset))
        return jax.tree.map(jnp.add, here, to_first), _sent(there, offset, to_second)

    n = jax.tree.leaves(nodes)[0].shape[0]
    start = _zeros(shapes), _zeros(shapes, 2 * n)
    return _folded(*jax.lax.fori_loop(1, count + 1, add, start))


def _gathered_forward(exchange, pairs, nodes):
    return gathered(exchange, pairs, nodes), (pairs, nodes)


def _gathered_backward(exchange, kept, cotangent):
    """The same walk over the offsets, with the transpose of `exchange` at each."""
    pairs, nodes = kept
    count, twice, cotangents = jax.tree.leaves(pairs)[0].shape[0], _twice(nodes), _twice(cotangent)

    def add(offset, sums):
        slopes, here, there = sums
        given = _first(pairs, offset), nodes, _later(twice, offset)
        _, pull = jax.vjp(exchange, *given)
        slope, to_first, to_second = pull((cotangent, _later(cotangents, offset)))
        put = lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, offset - 1, 0)  # noqa: E731
        here = jax.tree.map(jnp.add, here, to_first)
        return jax.tree.map(put, slopes, slope), here, _sent(there, offset, to_second)

    n = jax.tree.leaves(nodes)[0].shape[0]
    start = _zeros(pairs), _zeros(nodes), _zeros(nodes, 2 * n)
    slopes, here, there = jax.lax.fori_loop(1, count + 1, add, start)
    return slopes, _folded(here, there)


gathered.defvjp(_gathered_forward, _gathered_backward)


def differences(x: Float[Array, "n dim"]) -> Float[Array, "P n dim"]:
    """x_i - x_{i+k}: rows of n + 1 cut from x repeated, so that each begins one particle later."""
    n, count = x.shape[0], x.shape[0] // 2
    repeated = jnp.tile(x, (-(-(count + 1) * (n + 1) // n), 1))
    rows = repeated[n + 1 : (n + 1) * (count + 1)].reshape(count, n + 1, -1)
    return x[None] - rows[:, :n]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gaussians(u: Float[Array, "P n"], count: int) -> Float[Array, "P n R"]:
    """exp(-½ R² (u - c)²) for R centres c between 0 and 1."""
    centres = jnp.linspace(0.0, 1.0, count, dtype=u.dtype)
    return jnp.exp(-0.5 * ((u[..., None] - centres[None, None]) * count) ** 2)


def _gaussians_forward(u, count):
    made = _gaussians(u, count)
    return made, (u, made)


def _gaussians_backward(count, kept, slope):
    u, made = kept
    centres = jnp.linspace(0.0, 1.0, count, dtype=u.dtype)

    # offset by offset: in one piece XLA fuses it with the products of matrices that the slope
    # is made by, and is then much slower at those
    def back(k, out):
        at = lambda a: jax.lax.dynamic_index_in_dim(a, k, keepdims=False)  # noqa: E731
        terms = at(slope) * at(made) * (at(u)[:, None] - centres[None])
        row = -float(count**2) * jnp.sum(terms, axis=-1)
        return jax.lax.dynamic_update_index_in_dim(out, row, k, 0)

    return (jax.lax.fori_loop(0, u.shape[0], back, jnp.zeros_like(u)),)


_gaussians.defvjp(_gaussians_forward, _gaussians_backward)


def radial_basis(
    x: Float[Array, "n dim"], count: int, reach: float, softening: Float[Array, ""]
) -> tuple[Float[Array, "P n R"], Float[Array, "P n dim"]]:
    """Gaussians in u = r/(r + reach/2), dense at short range, and x_ij/r, of every pair.

    r² = |x_ij|² + softening² + 10⁻⁶: as smooth where particles meet as the density is. The last
    term keeps the gradient finite without a softening.
    """
    difference = differences(x)
    r = jnp.sqrt(jnp.sum(difference**2, axis=-1) + softening**2 + 1e-6)
    # u in [0, 1) compresses long distances: resolution where the forces are
    u = r / (r + 0.5 * reach)
    basis = _gaussians(u, count) * shares(x.shape[0])[:, None, None]
    return basis, difference / r[..., None]


def softened(level: Float[Array, ""], softness: float) -> Float[Array, ""]:
    """softness · r/√(1+r²), r = σ/σ_d = exp(2 level): a share of the noise, as the network sees it.

    The smoothed density knows no direction from a particle to one that sits on it; x_ij/|x_ij|
    does, and a flow that is led there meets a jump, with a divergence of -1/|x_ij|.
    """
    ratio = jnp.exp(2 * level)
    return softness * ratio * jax.lax.rsqrt(1 + ratio**2)


def _message(filters, v, w):
    return filters * w, filters * v


def messages(filters: Float[Array, "P n ..."], v: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """m_i = Σ_{j≠i} f_ij ⊙ v_j, f_ij = f_ji."""
    return gathered(_message, filters, v)


def _force(pair, here, there):
    (filters, unit), (a, b), (c, d) = pair, here, there
    # a product with ones: on a CPU XLA's sums along the last axis take several times as long
    ones = jnp.ones((filters.shape[-1], 1), filters.dtype)
    total = partial(jnp.matmul, b=ones, precision=jax.lax.Precision.HIGHEST)
    return total(filters * a * d) * unit, -total(filters * c * b) * unit


def forces(
    filters: Float[Array, "P n C"],
    a: Float[Array, "n C"],
    b: Float[Array, "n C"],
    unit: Float[Array, "P n dim"],
) -> Float[Array, "n dim"]:
    """Σ_j r̂_ij Σ_c f_ijc a_ic b_jc, f_ij = f_ji: of every pair, on both of its particles."""
    return gathered(_force, (filters, unit), (a, b))
