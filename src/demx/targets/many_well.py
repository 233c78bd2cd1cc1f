"""Many wells: independent pairs of a double well and a Gaussian, 2^{d/2} modes (FAB's test)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demx.space import Euclidean


class ManyWell(eqx.Module):
    """E(x) = Σ_{i even} (x_i⁴ - 6 x_i² - ½ x_i) + Σ_{i odd} ½ x_i².

    Every even coordinate has two wells, at -1.71 (lighter) and 1.75; samples and log Z are
    exact to the quadrature of one coordinate.
    """

    space: Euclidean

    @staticmethod
    def _well(u: Array) -> Array:
        return u**4 - 6 * u**2 - 0.5 * u

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return -jnp.sum(self._well(x[0::2])) - 0.5 * jnp.sum(x[1::2] ** 2)

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        grid = np.linspace(-4.0, 4.0, 20001)
        return grid, np.exp(-(grid**4 - 6 * grid**2 - 0.5 * grid))

    @property
    def log_z(self) -> float:
        grid, density = self._table()
        pairs = self.space.dim // 2
        return float(pairs * (np.log(np.trapezoid(density, grid)) + 0.5 * np.log(2 * np.pi)))

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        key_well, key_normal = jax.random.split(key)
        grid, density = self._table()
        cumulative = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        cumulative = jnp.asarray(cumulative / cumulative[-1], float)
        pairs = self.space.dim // 2
        uniform = jax.random.uniform(key_well, (n, pairs))
        wells = jnp.interp(uniform, cumulative, jnp.asarray(grid, float))
        normals = jax.random.normal(key_normal, (n, pairs))
        return jnp.stack([wells, normals], axis=2).reshape(n, 2 * pairs)


def many_well(*, dim: int = 32) -> ManyWell:
    """The many-well target in an even number of dimensions."""
    if dim < 2 or dim % 2:
        raise ValueError(f"dim: expected an even number, at least 2, got {dim}")
    return ManyWell(Euclidean(dim))
