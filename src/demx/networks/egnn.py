"""The E(n)-equivariant graph network of the paper (Satorras et al. 2021; paper, app. F.1)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.networks.embedding import Species, species
from demx.space import MeanFree, Space


def _perceptron(sizes: list[int], key: PRNGKeyArray) -> list[eqx.nn.Linear]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes, sizes[1:], keys, strict=False)]


def _apply(layers: list[eqx.nn.Linear], x: Array) -> Array:
    """SiLU between the layers, over any leading axes."""
    for i, layer in enumerate(layers):
        bias = layer.bias.reshape((1,) * (x.ndim - 1) + (-1,))
        x = x @ layer.weight.T + bias
        if i < len(layers) - 1:
            x = jax.nn.silu(x)
    return x


class Layer(eqx.Module):
    """One round of messages: edges, coordinates, nodes.

    m_ij = φ_e(h_i, h_j, d²_ij, d²_ij at the input) · gate(m_ij),
    x_i += Σ_j (x_i - x_j)/(d_ij + 1) φ_x(m_ij),   h_i += φ_h(h_i, Σ_j m_ij).
    """

    edge: list[eqx.nn.Linear]
    gate: eqx.nn.Linear
    coordinate: list[eqx.nn.Linear]
    node: list[eqx.nn.Linear]
    reach: float

    def __call__(self, h: Array, x: Array, initial: Array) -> tuple[Array, Array]:
        n = x.shape[0]
        difference = x[:, None] - x[None]
        squared = jnp.sum(difference**2, axis=-1, keepdims=True)
        pair = [
            jnp.broadcast_to(h[:, None], (n, n, h.shape[1])),
            jnp.broadcast_to(h[None], (n, n, h.shape[1])),
            squared,
            initial,
        ]
        others = (1 - jnp.eye(n, dtype=x.dtype))[..., None]
        message = jax.nn.silu(_apply(self.edge, jnp.concatenate(pair, axis=-1)))
        message = message * jax.nn.sigmoid(_apply([self.gate], message)) * others
        push = self.reach * jnp.tanh(_apply(self.coordinate, message)) * others
        # |d| + 1 in the denominator, as in the original: bounded, smooth at d = 0
        unit = difference / (jnp.sqrt(squared + 1e-8) + 1)
        total = jnp.sum(message, axis=1)
        h = h + _apply(self.node, jnp.concatenate([h, total], axis=-1))
        return h, x + jnp.sum(unit * push, axis=1)


class EGNN(eqx.Module):
    """Fully connected; node input: level and species; output: (x_L - x) without its mean."""

    embed: eqx.nn.Linear
    layers: list[Layer]
    species: Species | None

    def activations(self, space: Space) -> int:
        """Floats of the largest array for one configuration: the input of the edge perceptron."""
        return space.shape[0] ** 2 * (2 * self.embed.out_features + 2)

    def __call__(self, level: Float[Array, ""], x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        h = jnp.broadcast_to(self.embed(level[None])[None], (x.shape[0], self.embed.out_features))
        h = h if self.species is None else h + self.species()
        initial = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1, keepdims=True)
        moved = x
        for layer in self.layers:
            h, moved = layer(h, moved, initial)
        out = moved - x
        return out - jnp.mean(out, axis=0, keepdims=True)


def egnn(
    space: Space,
    key: PRNGKeyArray,
    *,
    width: int = 128,
    depth: int = 5,
    reach: float = 15.0,
) -> EGNN:
    """`depth` rounds of messages of `width`; an edge moves a particle at most reach/depth."""
    if not isinstance(space, MeanFree):
        raise ValueError(f"network egnn: expected a space of particles, got {space}; use mlp")
    if width < 1 or depth < 1:
        raise ValueError(f"expected width >= 1 and depth >= 1, got width={width}, depth={depth}")
    key_embed, *keys = jax.random.split(key, depth + 1)

    def layer(key):
        key_edge, key_gate, key_coordinate, key_push, key_node = jax.random.split(key, 5)
        return Layer(
            _perceptron([2 * width + 2, width, width], key_edge),
            eqx.nn.Linear(width, 1, key=key_gate),
            # the last layer starts near zero: an untrained network moves nothing
            [
                *_perceptron([width, width], key_coordinate),
                jax.tree.map(
                    lambda leaf: 1e-3 * leaf, eqx.nn.Linear(width, 1, use_bias=True, key=key_push)
                ),
            ],
            _perceptron([2 * width, width, width], key_node),
            reach / depth,
        )

    embed = eqx.nn.Linear(1, width, key=key_embed)
    return EGNN(embed, [layer(k) for k in keys], species(space, width, key))
