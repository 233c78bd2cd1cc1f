"""Sinusoidal features of a number, vectors of species, linear layers of many vectors at once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demx.space import MeanFree


class Species(eqx.Module):
    """A learned vector for each species: what a particle's features begin with."""

    table: Float[Array, "S C"]
    of: tuple[int, ...] = eqx.field(static=True)

    def __call__(self) -> Float[Array, "n C"]:
        return self.table[np.array(self.of)]


def species(space: MeanFree, size: int, key: PRNGKeyArray) -> Species | None:
    """None where all particles are equal; the key is a branch of the network's own."""
    if space.several is None:
        return None
    shape = (max(space.several) + 1, size)
    return Species(jax.random.normal(jax.random.fold_in(key, 0x5BEC), shape), space.several)


def sinusoidal(
    value: Float[Array, "*batch"], size: int, scale: float
) -> Float[Array, "*batch size"]:
    """[cos(s v f_k), sin(s v f_k)], f_k geometric from 1 to 0.01: `size` features of each value."""
    frequencies = np.exp(-np.log(1e2) * np.arange(size // 2) / (size // 2))
    angle = value[..., None] * jnp.asarray(
        (scale * frequencies).reshape((1,) * value.ndim + (-1,)), value.dtype
    )
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def linear(layer: eqx.nn.Linear, x: Float[Array, "*batch a"]) -> Float[Array, "*batch b"]:
    """W x + b along the last axis."""
    out = x @ layer.weight.T
    return out if layer.bias is None else out + layer.bias.reshape((1,) * (x.ndim - 1) + (-1,))
