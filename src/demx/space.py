"""Where a configuration lives: R^d, or n particles with their centre of mass at the origin."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.errors import UserError
from demx.whole import whole, wholes


class Euclidean(eqx.Module):
    """R^d: shape (d,), d degrees of freedom, nothing to project."""

    dim: int

    def __check_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim: expected at least 1, got {self.dim}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def dof(self) -> int:
        return self.dim

    def project(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x

    def project_columns(self, x: Float[Array, "d N"]) -> Float[Array, "d N"]:
        return x

    def coordinates(self, x: Float[Array, " d"]) -> Float[Array, " dof"]:
        return x

    def configuration(self, u: Float[Array, " dof"]) -> Float[Array, " d"]:
        return u


class MeanFree(eqx.Module):
    """n particles in R^dim with Σ_i x_i = 0: shape (n, dim), (n-1)·dim degrees of freedom.

    `project` removes the centre of mass; it works on any leading axes. A standard normal
    of R^{n·dim}, projected, is the zero-centre-of-mass normal of the paper's §3.3.
    species: a whole number for each particle, only equal ones can be exchanged; None: all are
    equal.
    """

    num_particles: int
    dim: int
    species: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.species is not None and len(self.species) != self.num_particles:
            raise ValueError(
                f"species: expected one for each of {self.num_particles} particles, "
                f"got {len(self.species)}"
            )
        if self.num_particles < 2 or self.dim < 1:
            raise ValueError(
                "expected at least 2 particles in at least 1 dimension, "
                f"got num_particles={self.num_particles}, dim={self.dim}"
            )

    @property
    def several(self) -> tuple[int, ...] | None:
        """The species, numbered 0, 1, … in the order of their numbers; None if all are equal."""
        if self.species is None or len(set(self.species)) == 1:
            return None
        order = sorted(set(self.species))
        return tuple(order.index(one) for one in self.species)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_particles, self.dim)

    @property
    def dof(self) -> int:
        return (self.num_particles - 1) * self.dim

    def project(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return x - jnp.mean(x, axis=-2, keepdims=True)

    def project_columns(self, x: Float[Array, "n dim N"]) -> Float[Array, "n dim N"]:
        """`project` for configurations along the last axis."""
        return x - jnp.mean(x, axis=0, keepdims=True)

    def _basis(self) -> Float[Array, "fewer n"]:
        """Helmert's rows, (1, …, 1, -k, 0, …)/√(k(k+1)): orthonormal, each of sum 0."""
        n = self.num_particles
        k = np.arange(1, n)[:, None]
        column = np.arange(n)[None]
        rows = np.where(column < k, 1.0, np.where(column == k, -k, 0.0)) / np.sqrt(k * (k + 1))
        return jnp.asarray(rows, float)

    def coordinates(self, x: Float[Array, "n dim"]) -> Float[Array, " dof"]:
        """u = H x: orthonormal coordinates of the subspace, so lengths and volumes are kept."""
        return (self._basis() @ x).ravel()

    def configuration(self, u: Float[Array, " dof"]) -> Float[Array, "n dim"]:
        """x = Hᵀ u, the inverse of `coordinates`."""
        return self._basis().T @ u.reshape(self.num_particles - 1, self.dim)


Space = Euclidean | MeanFree


def dim_of(shape: Any, dim: Any, particles: Any) -> Any:
    """dim, where a user may have named the shape of x in its place: (dim,)."""
    if shape is None:
        return dim
    if dim is not None or particles is not None:
        raise UserError("expected one of shape, dim and particles, got two of them")
    sizes = wholes("shape", shape, "that of one x, such as (10,)")
    if len(sizes) == 1:
        return sizes[0]
    told = sizes if len(sizes) == 2 else "(n, dimension)"
    raise UserError(
        f"shape: {sizes} does not say whether these are particles; say particles={told} if they "
        "are free to move and turn together and to be exchanged, or else write the energy of one "
        f"flat vector, dim={math.prod(sizes)}"
    )


def space_of(dim: Any, particles: Any, species: Any = None) -> Space:
    """The space that a user names: R^dim, or particles=(n, dimension), perhaps of species."""
    if (dim is None) == (particles is None):
        raise UserError(
            "an energy function needs one of dim=… and particles=(n, dimension), on the command "
            "line --dim 10 or --shape 13,3 --symmetry particles; "
            f"got dim={dim}, particles={particles}"
        )
    if dim is not None:
        if species is not None:
            raise UserError("species: only for particles=(n, dimension)")
        return Euclidean(whole("dim", dim, 1))
    wanted = "two whole numbers, (n, dimension)"
    sizes = wholes("particles", particles, wanted)
    if len(sizes) != 2:
        raise UserError(f"particles: expected {wanted}, got {particles!r}")
    return MeanFree(*sizes, None if species is None else kinds(species))


def named(space: Space) -> dict[str, Any]:
    """A space as arguments of `space_of`, as a configuration holds it."""
    if isinstance(space, Euclidean):
        return {"dim": space.dim}
    species = {} if space.species is None else {"species": list(space.species)}
    return {"particles": list(space.shape), **species}


def kinds(species: Any) -> tuple[int, ...]:
    """Species as a user names them."""
    return wholes("species", species, "a whole number for each particle")


def normal(key: PRNGKeyArray, space: Space, leading: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Standard normal draws of a space, shape (*leading, *space.shape)."""
    return space.project(jax.random.normal(key, (*leading, *space.shape)))


def _order(key: PRNGKeyArray, space: MeanFree) -> Int[Array, " n"]:
    """The particles renumbered among equals, at random."""
    kinds = np.zeros(space.num_particles, int) if space.several is None else np.array(space.several)
    # sorted by species, then by coins: the places of a species go to its members in any order
    drawn = jnp.argsort(jnp.asarray(kinds, float) + jax.random.uniform(key, kinds.shape))
    return jnp.zeros_like(drawn).at[np.argsort(kinds, kind="stable")].set(drawn)


def image(key: PRNGKeyArray, space: MeanFree, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    """A configuration turned or reflected, its particles renumbered among equals, at random."""
    key_turn, key_order = jax.random.split(key)
    turn, _ = jnp.linalg.qr(jax.random.normal(key_turn, (space.dim, space.dim)))
    return x[_order(key_order, space)] @ turn


class Side(eqx.Module):
    """A symmetry g: particles renumbered among equals, axes exchanged and reflected.

    Without a product of matrices or a decomposition, unlike `image`: for every point of a batch.
    """

    order: Int[Array, " n"]
    axes: Int[Array, " dim"]
    signs: Float[Array, " dim"]

    def turn(self, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """g x."""
        return x[self.order][:, self.axes] * self.signs[None]

    def back(self, y: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        """g⁻¹ y."""
        return (y * self.signs[None])[:, jnp.argsort(self.axes)][jnp.argsort(self.order)]


def side(key: PRNGKeyArray, space: MeanFree) -> Side:
    """One of the symmetries, at random."""
    key_order, key_axes, key_signs = jax.random.split(key, 3)
    axes = jnp.argsort(jax.random.uniform(key_axes, (space.dim,)))
    signs = jax.random.rademacher(key_signs, (space.dim,), float)
    return Side(_order(key_order, space), axes, signs)


def log_normal(
    space: Space, x: Float[Array, "..."], variance: Float[Array, ""] | float
) -> Float[Array, ""]:
    """log N(x; 0, v·1) = -|x|²/2v - (dof/2) log 2πv, a density on the space (dof dimensions)."""
    return -0.5 * jnp.sum(x * x) / variance - 0.5 * space.dof * jnp.log(2 * jnp.pi * variance)


def distances(x: Float[Array, "n dim"]) -> Float[Array, " pairs"]:
    """The n(n-1)/2 distances between the particles of one configuration."""
    first, second = jnp.triu_indices(x.shape[0], k=1)
    return jnp.linalg.norm(x[first] - x[second], axis=-1)
