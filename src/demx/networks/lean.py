"""A lean equivariant network: continuous filters that are linear in a radial basis.

With basis functions b_k(r_ij), features h_i in R^C and per-layer weights W in R^{C×R}:

    m_i = Σ_j (W b(r_ij)) ⊙ (V h_j),      h_i += U · silu(film(level) · [h_i, m_i])
    F_i = Σ_j (r̂_ij) Σ_c (W_c b(r_ij)) a_c(h_i) b_c(h_j)  +  x_i · f(h_i)

One pair costs R·C multiply-adds a layer instead of the several C² of an EGNN, and is met once:
filters of r_ij serve both particles.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.networks.embedding import Species, linear, sinusoidal, species
from demx.networks.pairs import forces, messages, radial_basis, softened
from demx.space import MeanFree, Space


class Interaction(eqx.Module):
    """One layer: m_i = Σ_j (W b_ij) ⊙ (V h_j), then a residual update steered by the level."""

    filter: Float[Array, "C R"]
    value: eqx.nn.Linear
    film: eqx.nn.Linear
    update_in: eqx.nn.Linear
    update_out: eqx.nn.Linear

    def __call__(self, h: Array, basis: Array, level: Array) -> Array:
        value = linear(self.value, h)
        message = messages(basis @ self.filter.T, value)
        inner = linear(self.update_in, jnp.concatenate([h, message], axis=-1))
        scale, shift = jnp.split(self.film(level), 2)
        inner = jax.nn.silu(inner * (1 + scale)[None] + shift[None])
        return h + linear(self.update_out, inner)


class Lean(eqx.Module):
    """Invariant features from filtered messages, then one equivariant read-out."""

    level_in: eqx.nn.Linear
    level_out: eqx.nn.Linear
    node: eqx.nn.Linear
    layers: list[Interaction]
    read_filter: Float[Array, "C R"]
    read_self: eqx.nn.Linear
    read_other: eqx.nn.Linear
    read_radial: eqx.nn.Linear
    reach: float
    softness: float
    levels: int
    species: Species | None

    def activations(self, space: Space) -> int:
        """Floats of the largest array for one configuration: the filters of all pairs."""
        n = space.shape[0]
        return n * (n // 2) * max(self.read_filter.shape)

    def __call__(self, level: Float[Array, ""], x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        soft = softened(level, self.softness)
        basis, unit = radial_basis(x, self.read_filter.shape[1], self.reach, soft)
        features = jax.nn.silu(self.level_in(sinusoidal(level, self.levels, 8.0)))
        conditioning = jax.nn.silu(self.level_out(features))
        radius2 = jnp.sum(x**2, axis=-1, keepdims=True)
        radial = jnp.concatenate([jnp.sqrt(radius2 + 1e-4), jnp.log1p(radius2)], axis=-1)
        h = linear(self.node, radial) + conditioning[None]
        h = h if self.species is None else h + self.species()
        for layer in self.layers:
            h = layer(h, basis, conditioning)
        a, b = linear(self.read_self, h), linear(self.read_other, h)
        out = forces(basis @ self.read_filter.T, a, b, unit)
        out = out + x * linear(self.read_radial, h)
        return out - jnp.mean(out, axis=0, keepdims=True)


def lean(
    space: Space,
    key: PRNGKeyArray,
    *,
    width: int = 64,
    depth: int = 3,
    num_basis: int = 32,
    reach: float = 4.0,
    softness: float = 0.5,
) -> Lean:
    """`depth` interactions of `width` channels on `num_basis` radial functions.

    reach: the distance (in preconditioned coordinates) at which the basis has spent two thirds
    of its resolution.
    softness: how far distances are softened, as a share of the noise (`pairs.softened`).
    """
    if not isinstance(space, MeanFree):
        raise ValueError(f"network lean: expected a space of particles, got {space}; use mlp")
    if min(width, depth, num_basis) < 1 or not (reach > 0 and softness >= 0):
        raise ValueError(
            "expected width, depth, num_basis >= 1, reach > 0 and softness >= 0, got width="
            f"{width}, depth={depth}, num_basis={num_basis}, reach={reach}, softness={softness}"
        )
    levels = 32
    keys = jax.random.split(key, depth + 7)

    def filters(key):
        return jax.random.normal(key, (width, num_basis)) / num_basis**0.5

    def interaction(key):
        k = jax.random.split(key, 5)
        return Interaction(
            filters(k[0]),
            eqx.nn.Linear(width, width, use_bias=False, key=k[1]),
            eqx.nn.Linear(width, 4 * width, key=k[2]),
            eqx.nn.Linear(2 * width, 2 * width, key=k[3]),
            eqx.nn.Linear(2 * width, width, key=k[4]),
        )

    other = eqx.nn.Linear(width, width, key=keys[5])
    radial = eqx.nn.Linear(width, 1, key=keys[6])
    zero = lambda layer: jax.tree.map(jnp.zeros_like, layer)  # noqa: E731
    return Lean(
        eqx.nn.Linear(levels, width, key=keys[0]),
        eqx.nn.Linear(width, width, key=keys[1]),
        eqx.nn.Linear(2, width, key=keys[2]),
        [interaction(k) for k in keys[7:]],
        filters(keys[3]),
        eqx.nn.Linear(width, width, key=keys[4]),
        # zero read-out: an untrained, preconditioned model is exact for a Gaussian target
        zero(other),
        zero(radial),
        reach,
        softness,
        levels,
        species(space, width, key),
    )
