"""Every pair of n particles once: (i, i + k mod n) for the offsets k = 1, …, P = n//2.

Arrays over pairs have the shape (P, n, …). If n is even the pairs of the last offset appear twice,
and count half (`shares`). Only whole rows are moved: no gather and no scatter of single pairs.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def shares(n: int) -> Float[Array, " P"]:
    """1 for every offset; ½ for the last if n is even."""
    count = n // 2
    return jnp.asarray(np.where((np.arange(1, count + 1) * 2) == n, 0.5, 1.0), float)


def partners(v: Float[Array, "n ..."]) -> Float[Array, "P n ..."]:
    """v_{i+k}: rows of n + 1 cut from v repeated, so that each begins one particle later."""
    n, rest = v.shape[0], v.shape[1:]
    count = n // 2
    turns = -(-(count + 1) * (n + 1) // n)
    repeated = jnp.tile(v, (turns, *(1,) * len(rest)))
    rows = repeated[n + 1 : (n + 1) * (count + 1)].reshape(count, n + 1, *rest)
    return rows[:, :n]


def collected(g: Float[Array, "P n ..."]) -> Float[Array, "n ..."]:
    """Σ_k g_{k, j-k}: what every pair sends to its second particle; the transpose of `partners`."""
    count, n, *rest = g.shape
    twice = jnp.concatenate([g, g], axis=1).reshape(count * 2 * n, *rest)
    # rows of 2n - 1: each begins one particle earlier
    end = n - 1 + count * (2 * n - 1)
    zeros = jnp.zeros((max(0, end - count * 2 * n), *rest), g.dtype)
    rows = jnp.concatenate([twice, zeros])[n - 1 : end].reshape(count, 2 * n - 1, *rest)
    return jnp.sum(rows[:, :n], axis=0)


def radial_basis(
    x: Float[Array, "n dim"], count: int, reach: float, softening: Float[Array, ""]
) -> tuple[Float[Array, "P n R"], Float[Array, "P n dim"]]:
    """Gaussians in u = r/(r + reach/2), dense at short range, and x_ij/r, of every pair.

    r² = |x_ij|² + softening² + 10⁻⁶: as smooth where particles meet as the density is. The last
    term keeps the gradient finite without a softening.
    """
    difference = x[None] - partners(x)
    r = jnp.sqrt(jnp.sum(difference**2, axis=-1) + softening**2 + 1e-6)
    # u in [0, 1) compresses long distances: resolution where the forces are
    u = r / (r + 0.5 * reach)
    centres = jnp.linspace(0.0, 1.0, count, dtype=x.dtype)
    gauss = jnp.exp(-0.5 * ((u[..., None] - centres[None, None]) * count) ** 2)
    return gauss * shares(x.shape[0])[:, None, None], difference / r[..., None]


def softened(level: Float[Array, ""], softness: float) -> Float[Array, ""]:
    """softness · r/√(1+r²), r = σ/σ_d = exp(2 level): a share of the noise, as the network sees it.

    The smoothed density knows no direction from a particle to one that sits on it; x_ij/|x_ij|
    does, and a flow that is led there meets a jump, with a divergence of -1/|x_ij|.
    """
    ratio = jnp.exp(2 * level)
    return softness * ratio * jax.lax.rsqrt(1 + ratio**2)


def forces(
    filters: Float[Array, "P n C"],
    a: Float[Array, "n C"],
    b: Float[Array, "n C"],
    unit: Float[Array, "P n dim"],
) -> Float[Array, "n dim"]:
    """Σ_j r̂_ij Σ_c f_ijc a_ic b_jc, f_ij = f_ji: of every pair, on both of its particles."""
    # what the second particle of a pair does to the first, and the first to the second
    forth = jnp.sum(filters * a[None] * partners(b), axis=-1, keepdims=True)
    back = jnp.sum(filters * partners(a) * b[None], axis=-1, keepdims=True)
    return jnp.sum(forth * unit, axis=0) - collected(back * unit)


@jax.custom_vjp
def messages(filters: Float[Array, "P n C"], v: Float[Array, "n C"]) -> Float[Array, "n C"]:
    """m_i = Σ_{j≠i} f_ij ⊙ v_j, f_ij = f_ji.

    Symmetric in the particles, so its own transpose: the cotangent of v is messages(f, ṁ).
    """
    return jnp.sum(filters * partners(v), axis=0) + collected(filters * v[None])


def _forward(filters, v):
    return messages(filters, v), (filters, v)


def _backward(kept, cotangent):
    filters, v = kept
    slope = cotangent[None] * partners(v) + v[None] * partners(cotangent)
    return slope, messages(filters, cotangent)


messages.defvjp(_forward, _backward)
