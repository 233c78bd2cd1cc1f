"""The lean network with directions: features h_i in R^C and vectors v_i in R^{3×V}.

With filters f = W b(r_ij) of the radial basis and r̂_ij from j to i, a layer is

    m_i = Σ_j f_ij ⊙ (A h_j),     w_i = Σ_j f'_ij ⊙ (B h_j) r̂_ij + Σ_j f''_ij ⊙ v_j
    (δh_i, g_i) = U silu(film(level) · [h_i, m_i, |w_i|]),     h_i += δh_i,   v_i += g_i ⊙ w_i

|w_i|² = Σ_jk f'_ij f'_ik cos θ_jik: a layer sees angles, not only how many neighbours are how far
away. What a particle in a cage of others does at moderate noise depends on the shape of the cage.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.networks.embedding import Species, linear, sinusoidal, species
from demx.networks.pairs import forces, gathered, radial_basis, softened
from demx.space import MeanFree, Space


def first_exchange(pair, here, there):
    """f_ij ⊙ a_j, and f'_ij ⊙ b_j r̂_ij, r̂_ij = -r̂_ji: what a pair says to both its particles."""
    (filters, unit), (a, b), (c, d) = pair, here, there
    said, push = filters[:, : a.shape[1]], filters[:, a.shape[1] :]
    along = unit[:, :, None]
    return (said * c, (push * d)[:, None] * along), (said * a, -(push * b)[:, None] * along)


def exchange(pair, here, there):
    """The same, and f''_ij ⊙ v_j."""
    (filters, unit), (*own, v), (*other, w) = pair, here, there
    vectors = v.shape[2]
    (m, p), (n, q) = first_exchange((filters[:, :-vectors], unit), own, other)
    passed = filters[:, None, -vectors:]
    return (m, p + passed * w), (n, q + passed * v)


class Layer(eqx.Module):
    """One round: features and directions of the neighbours, then an update steered by the level."""

    filter: Float[Array, "C R"]
    push_filter: Float[Array, "V R"]
    pass_filter: Float[Array, "V R"] | None  # None: there are no vectors yet to pass on
    value: eqx.nn.Linear
    push_value: eqx.nn.Linear
    film: eqx.nn.Linear
    update_in: eqx.nn.Linear
    update_out: eqx.nn.Linear

    def __call__(
        self, h: Array, v: Array | None, basis: Array, unit: Array, level: Array
    ) -> tuple[Array, Array]:
        nodes = (linear(self.value, h), linear(self.push_value, h))
        weights = [self.filter, self.push_filter]
        # one walk over the pairs for all that is said
        if v is None:
            pairs = basis @ jnp.concatenate(weights).T, unit
            message, w = gathered(first_exchange, pairs, nodes)
        else:
            pairs = basis @ jnp.concatenate([*weights, self.pass_filter]).T, unit
            message, w = gathered(exchange, pairs, (*nodes, v))
        length = jnp.sqrt(jnp.sum(w**2, axis=1) + 1e-6)
        inner = linear(self.update_in, jnp.concatenate([h, message, length], axis=-1))
        scale, shift = jnp.split(self.film(level), 2)
        inner = jax.nn.silu(inner * (1 + scale)[None] + shift[None])
        out = linear(self.update_out, inner)
        change, gate = out[:, : h.shape[1]], out[:, h.shape[1] :]
        moved = gate[:, None] * w
        return h + change, moved if v is None else v + moved


class Directed(eqx.Module):
    """Features and vectors through all layers, then an equivariant read-out of both."""

    level_in: eqx.nn.Linear
    level_out: eqx.nn.Linear
    node: eqx.nn.Linear
    layers: list[Layer]
    read_filter: Float[Array, "C R"]
    read_self: eqx.nn.Linear
    read_other: eqx.nn.Linear
    read_radial: eqx.nn.Linear
    read_vectors: eqx.nn.Linear
    reach: float
    softness: float
    levels: int
    species: Species | None

    def activations(self, space: Space) -> int:
        """Floats of the largest array for one configuration: the filters of all pairs."""
        n, width = space.shape[0], self.read_filter.shape[0]
        return n * (n // 2) * (width + 2 * self.read_vectors.out_features)

    def begin(self, level: Array, x: Array) -> tuple[Array, Float[Array, "n C"]]:
        """The level as every layer gets it, and the first features: how far from the centre."""
        features = jax.nn.silu(self.level_in(sinusoidal(level, self.levels, 8.0)))
        conditioning = jax.nn.silu(self.level_out(features))
        radius2 = jnp.sum(x**2, axis=-1, keepdims=True)
        radial = jnp.concatenate([jnp.sqrt(radius2 + 1e-4), jnp.log1p(radius2)], axis=-1)
        h = linear(self.node, radial) + conditioning[None]
        return conditioning, h if self.species is None else h + self.species()

    def read(self, h: Array, v: Array, basis: Array, unit: Array) -> Float[Array, "n dim"]:
        """What features and vectors say, along the pairs and by the vectors themselves."""
        a, b = linear(self.read_self, h), linear(self.read_other, h)
        out = forces(basis @ self.read_filter.T, a, b, unit)
        return out + jnp.sum(linear(self.read_vectors, h)[:, None] * v, axis=-1)

    def __call__(self, level: Float[Array, ""], x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        soft = softened(level, self.softness)
        basis, unit = radial_basis(x, self.read_filter.shape[1], self.reach, soft)
        (conditioning, h), v = self.begin(level, x), None
        for layer in self.layers:
            h, v = layer(h, v, basis, unit, conditioning)
        out = self.read(h, v, basis, unit) + x * linear(self.read_radial, h)
        return out - jnp.mean(out, axis=0, keepdims=True)


def directed(
    space: Space,
    key: PRNGKeyArray,
    *,
    width: int = 64,
    depth: int = 3,
    vectors: int = 16,
    num_basis: int = 32,
    reach: float = 4.0,
    softness: float = 0.5,
) -> Directed:
    """`depth` layers of `width` channels and `vectors` directions on `num_basis` radial functions.

    reach, softness: as of the lean network.
    """
    if not isinstance(space, MeanFree):
        raise ValueError(f"network directed: expected a space of particles, got {space}; use mlp")
    if min(width, depth, vectors, num_basis) < 1 or not (reach > 0 and softness >= 0):
        raise ValueError(
            "expected width, depth, vectors, num_basis >= 1, reach > 0 and softness >= 0, got "
            f"width={width}, depth={depth}, vectors={vectors}, num_basis={num_basis}, "
            f"reach={reach}, softness={softness}"
        )
    levels = 32
    keys = jax.random.split(key, depth + 7)

    def filters(key, size):
        return jax.random.normal(key, (size, num_basis)) / num_basis**0.5

    def layer(key, first):
        k = jax.random.split(key, 8)
        return Layer(
            filters(k[0], width),
            filters(k[1], vectors),
            None if first else filters(k[2], vectors),
            eqx.nn.Linear(width, width, use_bias=False, key=k[3]),
            eqx.nn.Linear(width, vectors, use_bias=False, key=k[4]),
            eqx.nn.Linear(width, 4 * width, key=k[5]),
            eqx.nn.Linear(2 * width + vectors, 2 * width, key=k[6]),
            eqx.nn.Linear(2 * width, width + vectors, key=k[7]),
        )

    zero = lambda layer: jax.tree.map(jnp.zeros_like, layer)  # noqa: E731
    return Directed(
        eqx.nn.Linear(levels, width, key=keys[0]),
        eqx.nn.Linear(width, width, key=keys[1]),
        eqx.nn.Linear(2, width, key=keys[2]),
        [layer(k, first=i == 0) for i, k in enumerate(keys[7:])],
        filters(keys[3], width),
        eqx.nn.Linear(width, width, key=keys[4]),
        # zero read-out: an untrained, preconditioned model is exact for a Gaussian target
        zero(eqx.nn.Linear(width, width, key=keys[5])),
        zero(eqx.nn.Linear(width, 1, key=keys[6])),
        zero(eqx.nn.Linear(width, vectors, key=keys[6])),
        reach,
        softness,
        levels,
        species(space, width, key),
    )
