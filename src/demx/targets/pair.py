"""Pair potentials: one scalar function φ(r²) gives energies and forces of many clusters at once.

    E(x) = [Σ_{i<j} φ(|x_i - x_j|²)] + (k/2) Σ_i |x_i - x̄|²,   log p̃ = -E/τ.

The fused path keeps the sample index innermost (structure of arrays), walks over the n//2
cyclic offsets between particles, and takes energies and forces from one pass.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from demx.space import MeanFree, Space
from demx.targets.shaken import Shaken

Phi = Callable[[Array], Array]
Pull = Callable[[Array], Array]


class PairPotential(eqx.Module):
    """Particles that attract or repel by φ(r²), held together by a trap of stiffness k.

    phi: acts elementwise on squared distances. core: below r² = core, φ goes on linearly in r²
    with the slope it has there. Set it where exp(-φ/τ) is 0 in floating point anyway: energies
    and forces then stay finite and repulsive for overlapping particles.
    """

    space: Space
    phi: Phi
    trap: float = 0.0
    temperature: float = 1.0
    core: float = 1e-6

    def __check_init__(self) -> None:
        if not isinstance(self.space, MeanFree):
            raise ValueError(f"a pair potential needs a MeanFree space, got {self.space}")
        if not self.temperature > 0:
            raise ValueError(f"temperature: expected a positive number, got {self.temperature}")
        if not self.core > 0:
            raise ValueError(f"core: expected a positive number, got {self.core}")

    def _phi_and_slope(self, r2: Array) -> tuple[Array, Array]:
        """φ and dφ/d(r²), with the linear core."""
        inside = jnp.maximum(r2, self.core)
        value, slope = jax.jvp(self.phi, (inside,), (jnp.ones_like(inside),))
        return value + slope * (r2 - inside), slope

    def log_density(self, x: Float[Array, "n dim"]) -> Float[Array, ""]:
        n, _ = self.space.shape
        first, second = jnp.triu_indices(n, k=1)
        r2 = jnp.sum((x[first] - x[second]) ** 2, axis=-1)
        inside = jnp.maximum(r2, self.core)
        _, slope = jax.lax.stop_gradient(self._phi_and_slope(r2))
        pairs = jnp.sum(self.phi(inside) + slope * jnp.minimum(r2 - self.core, 0.0))
        centred = self.space.project(x)
        return -(pairs + 0.5 * self.trap * jnp.sum(centred**2)) / self.temperature

    def log_density_and_score(
        self, xs: Float[Array, "n dim N"]
    ) -> tuple[Float[Array, " N"], Float[Array, "n dim N"]]:
        n = self.space.shape[0]
        doubled = jnp.concatenate([xs, xs])

        def add_offset(offset, carry):
            energies, gradient = carry
            difference = xs - jax.lax.dynamic_slice_in_dim(doubled, offset, n)
            # a sum of slices, not of an axis: XLA then makes one loop of it, and of what follows
            r2 = sum(difference[:, i] ** 2 for i in range(xs.shape[1]))
            value, slope = self._phi_and_slope(r2)
            # for even n the offset n/2 meets every pair twice
            share = jnp.where(2 * offset == n, 0.5, 1.0).astype(xs.dtype)
            force = (2 * share * slope)[:, None] * difference
            gradient = gradient.at[:n].add(force)
            there = jax.lax.dynamic_slice_in_dim(gradient, offset, n) - force
            gradient = jax.lax.dynamic_update_slice_in_dim(gradient, there, offset, axis=0)
            return energies + share * value, gradient

        start = (jnp.zeros_like(xs[:, 0]), jnp.zeros_like(doubled))
        energies, gradient = jax.lax.fori_loop(1, n // 2 + 1, add_offset, start)
        centred = self.space.project_columns(xs)
        trapped = 0.5 * self.trap * jnp.sum(centred**2, axis=1)
        energy = jnp.sum(energies + trapped, axis=0)
        gradient = gradient[:n] + gradient[n:] + self.trap * centred
        return energy / -self.temperature, gradient / -self.temperature

    def shaken(
        self, x: Float[Array, "R n dim"], sigma: Float[Array, " R"], noise: Float[Array, "n dim K"]
    ) -> tuple[Float[Array, "R K"], Pull]:
        """log p̃(x_r + σ_r ε_k), and w ↦ Σ_k w_rk ∇log p̃(x_r + σ_r ε_k)."""
        # in the mean-free space Σ_i |x_i|² = (1/n) Σ_{i<j} r²: the trap is a pair potential too
        trap = 0.5 * self.trap / x.shape[1]

        def trapped(r2):
            value, slope = self._phi_and_slope(r2)
            return value + trap * r2, slope + trap

        found = Shaken(trapped, x, sigma, noise)
        return found.energies() / -self.temperature, lambda w: found.pull(w) / -self.temperature
