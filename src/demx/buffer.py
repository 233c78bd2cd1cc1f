"""The replay buffer of the outer loop: a ring of the newest points (paper, algorithm 1)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.space import Space


class Contents(NamedTuple):
    """points: (capacity, *shape). log_density: (capacity,). added: how many were ever put in."""

    points: Float[Array, "capacity ..."]
    log_density: Float[Array, " capacity"]
    added: Int[Array, ""]

    @property
    def size(self) -> Int[Array, ""]:
        return jnp.minimum(self.added, self.points.shape[0])


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1, got {capacity}")


def _empty(space: Space, capacity: int) -> Contents:
    return Contents(jnp.zeros((capacity, *space.shape)), jnp.zeros(capacity), jnp.zeros((), int))


def _add(contents: Contents, xs: Array, log_density: Array) -> Contents:
    """Put a batch in, over the oldest; of a batch larger than the ring the last points stay."""
    capacity = contents.points.shape[0]
    xs, log_density = xs[-capacity:], log_density[-capacity:]
    where = (contents.added + jnp.arange(xs.shape[0])) % capacity
    # `added` only has to be right modulo the capacity once the ring is full: no overflow
    added = contents.added + xs.shape[0]
    added = jnp.where(added >= 2 * capacity, capacity + added % capacity, added)
    return Contents(
        contents.points.at[where].set(xs), contents.log_density.at[where].set(log_density), added
    )


class Ring(eqx.Module):
    """First in, first out, drawn from uniformly: the paper's."""

    capacity: int = 10_000
    needs_energy = False

    def __check_init__(self) -> None:
        _check_capacity(self.capacity)

    def init(self, space: Space) -> Contents:
        return _empty(space, self.capacity)

    def add(self, contents: Contents, xs: Array, log_density: Array) -> Contents:
        return _add(contents, xs, log_density)

    def sample(self, key: PRNGKeyArray, contents: Contents, n: int) -> Array:
        return contents.points[jax.random.randint(key, (n,), 0, contents.size)]


class Prioritised(eqx.Module):
    """First in, first out, drawn with probability ∝ rank^{-power}, rank 1 the lowest energy.

    Ranks rather than exp(-E): in high dimension the latter falls on one point. Costs one energy
    call for each point put in.
    """

    capacity: int = 10_000
    power: float = 0.5
    needs_energy = True

    def __check_init__(self) -> None:
        _check_capacity(self.capacity)
        if self.power < 0:
            raise ValueError(f"power: expected at least 0, got {self.power}")

    def init(self, space: Space) -> Contents:
        return _empty(space, self.capacity)

    def add(self, contents: Contents, xs: Array, log_density: Array) -> Contents:
        return _add(contents, xs, log_density)

    def sample(self, key: PRNGKeyArray, contents: Contents, n: int) -> Array:
        position = jnp.arange(self.capacity)
        filled = position < contents.size
        best_first = jnp.argsort(jnp.where(filled, -contents.log_density, jnp.inf))
        rank = (position + 1).astype(contents.log_density.dtype)
        # by the cumulative distribution: n numbers, not n·capacity as a categorical draw would take
        cumulative = jnp.cumsum(jnp.where(filled, rank**-self.power, 0.0))
        level = jax.random.uniform(key, (n,), maxval=cumulative[-1])
        drawn = jnp.searchsorted(cumulative, level, side="right")
        return contents.points[best_first[jnp.minimum(drawn, contents.size - 1)]]


Buffer = Ring | Prioritised
BUFFERS = {"ring": Ring, "prioritised": Prioritised}
