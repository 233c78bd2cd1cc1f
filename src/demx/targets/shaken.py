"""Clusters shaken by one block of noise: log p̃(x_r + σ_r ε_k) for R clusters and K samples.

Clusters that share their noise share its differences ε_i - ε_j too, so a pair costs

    r² = |d_r + σ_r (ε_i - ε_j)_k|²,   E_rk += φ(r²),        d_r = x_i - x_j of cluster r,

three numbers read and no force written. Of the K·R forces only sums over k are ever wanted,
the pull of weights w_rk,

    Σ_k w_rk ∂E_rk/∂d_r = 2 [ d_r Σ_k w φ'(r²) + σ_r Σ_k w φ'(r²) (ε_i - ε_j)_k ],

and these are products of matrices. Pairs are taken by cyclic offsets, as in `pair`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.loops import apart

PhiAndSlope = Callable[[Array], tuple[Array, Array]]

GROUP = 16  # pairs of one offset that are added up in one expression, without a store between
COLUMNS = 1 << 10  # samples at a time: the differences of a group stay in the second-level cache


class _Pairs:
    """The pairs (i, i + offset) of n particles in groups of equal size; the last may overhang."""

    def __init__(self, n: int):
        self.n, self.groups = n, -(-n // GROUP)
        self.size = -(-n // self.groups)
        self.count = (n // 2) * self.groups

    def place(self, number: Array) -> tuple[Array, Array]:
        """First particle and offset of a group."""
        return (number % self.groups) * self.size, 1 + number // self.groups

    def shares(self, number: Array, dtype) -> Float[Array, " g"]:
        """1; ½ where an offset of n/2 meets every pair twice; 0 beyond the last particle."""
        start, offset = self.place(number)
        once = jnp.where(2 * offset == self.n, 0.5, 1.0).astype(dtype)
        return jnp.where(start + jnp.arange(self.size) < self.n, once, 0.0)

    def wide(self, rows: Array) -> Array:
        """Rows of particles, repeated so that every group is a slice."""
        return jnp.concatenate([rows, rows, rows[: self.size]])

    def differences(self, wide: Array, number: Array) -> Array:
        """x_i - x_{i+offset} of a group, from `wide` rows."""
        start, offset = self.place(number)
        cut = lambda at: jax.lax.dynamic_slice_in_dim(wide, at, self.size)  # noqa: E731
        return apart(number, lambda: cut(start) - cut(start + offset))

    def send(self, wide: Array, number: Array, what: Array) -> Array:
        """wide[i] += what, wide[i + offset] -= what."""
        start, offset = self.place(number)
        for at, sent in ((start, what), (start + offset, -what)):
            moved = jax.lax.dynamic_slice_in_dim(wide, at, self.size) + sent
            wide = jax.lax.dynamic_update_slice_in_dim(wide, moved, at, axis=0)
        return wide

    def folded(self, wide: Array) -> Array:
        """What was sent to particle i, in all its places."""
        sums = wide[: self.n] + wide[self.n : 2 * self.n]
        return sums.at[: self.size].add(wide[2 * self.n :])


def _blocks(noise: Float[Array, "n dim K"]) -> Float[Array, "blocks n dim C"]:
    """The samples in blocks of equal size, the last filled up with zeros."""
    count = noise.shape[-1]
    blocks = -(-count // COLUMNS)
    columns = -(-count // blocks)
    padded = jnp.pad(noise, ((0, 0), (0, 0), (0, blocks * columns - count)))
    return jnp.moveaxis(padded.reshape(*noise.shape[:2], blocks, columns), 2, 0)


def _squares(d: Array, sigma: Array, e: Array) -> Array:
    """|d_r + σ_r e_k|², components first: d (dim, R), σ (R,), e (dim, C) → (R, C)."""
    return sum((d[c][:, None] + sigma[:, None] * e[c][None]) ** 2 for c in range(d.shape[0]))


class Shaken:
    """R clusters x_r + σ_r ε_k of pair potentials: x (R, n, dim), sigma (R,), noise (n, dim, K).

    phi_and_slope: r² ↦ (φ, dφ/dr²), elementwise.
    """

    def __init__(self, phi_and_slope: PhiAndSlope, x: Array, sigma: Array, noise: Array):
        self.phi_and_slope, self.sigma = phi_and_slope, sigma
        self.pairs, self.num_samples = _Pairs(x.shape[1]), noise.shape[-1]
        self.places = self.pairs.wide(jnp.moveaxis(x, 0, -1))
        self.blocks = _blocks(noise)

    def energies(self) -> Float[Array, "R K"]:
        """E_rk = Σ_{i<j} φ(r²)."""
        pairs, sigma = self.pairs, self.sigma

        def block(noise):
            shaken = pairs.wide(noise)

            def add(number, total):
                d, e = pairs.differences(self.places, number), pairs.differences(shaken, number)
                shares = pairs.shares(number, sigma.dtype)
                # a sum of slices, not of an axis: XLA makes one loop of it, without a store
                for i in range(pairs.size):
                    value = self.phi_and_slope(_squares(d[i], sigma, e[i]))[0]
                    # not 0·φ: beyond the last particle φ may be infinite
                    total = total + jnp.where(shares[i] > 0, shares[i] * value, 0.0)
                return total

            zero = jnp.zeros((len(sigma), noise.shape[-1]), sigma.dtype)
            return jax.lax.fori_loop(0, pairs.count, add, zero)

        found = jax.lax.map(block, self.blocks)
        return jnp.moveaxis(found, 0, 1).reshape(len(sigma), -1)[:, : self.num_samples]

    def pull(self, weights: Float[Array, "R K"]) -> Float[Array, "R n dim"]:
        """Σ_k w_rk ∂E_rk/∂x_r."""
        pairs, sigma, blocks = self.pairs, self.sigma, self.blocks
        missing = len(blocks) * blocks.shape[-1] - self.num_samples
        weights = jnp.pad(weights, ((0, 0), (0, missing)))
        weights = jnp.moveaxis(weights.reshape(len(sigma), -1, blocks.shape[-1]), 1, 0)

        def block(total, now):
            noise, weight = now
            shaken = pairs.wide(noise)

            def add(number, total):
                d, e = pairs.differences(self.places, number), pairs.differences(shaken, number)
                slope = self.phi_and_slope(jax.vmap(_squares, (0, None, 0))(d, sigma, e))[1]
                # where a sample has no weight its slope, which may be infinite, has no say
                weighted = jnp.where(weight[None] == 0, 0.0, weight[None] * slope)
                ones = jnp.ones_like(e[:, :1])
                sums = jnp.einsum("gck,grk->gcr", jnp.concatenate([e, ones], axis=1), weighted)
                pull = 2 * (d * sums[:, -1:] + sigma[None, None] * sums[:, :-1])
                shares = pairs.shares(number, sigma.dtype)
                shares = shares[:, None, None]
                return pairs.send(total, number, jnp.where(shares > 0, shares * pull, 0.0))

            return jax.lax.fori_loop(0, pairs.count, add, total), None

        total, _ = jax.lax.scan(block, jnp.zeros_like(self.places), (blocks, weights))
        return jnp.moveaxis(pairs.folded(total), -1, 0)
