"""The directed network, whose layers move the particles: an unrolled relaxation.

    F ← 0, y ← x;   in every layer:  (h, v) ← layer(h, v; y),   f = read-out(h, v; y),
                                     F ← F + f,   y ← y + g(level) f,   g = r/(1 + r²)

r = σ/σ_d = exp(2 level) of the denoiser's preconditioning, so y is the denoised configuration as
far as the layers know it. The next layer sees its distances: in a dense cluster at moderate
noise those of x say little, and where each particle belongs is found by all of them settling
together, round by round. All layers share one read-out.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.networks.directed import Directed, directed
from demx.networks.embedding import linear
from demx.networks.pairs import radial_basis, softened
from demx.space import Space


class Relaxing(Directed):
    """The parts of `Directed`, applied round by round to particles that move."""

    def __call__(self, level: Float[Array, ""], x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        conditioning, h = self.begin(level, x)
        ratio, soft = jnp.exp(2 * level), softened(level, self.softness)
        gain = ratio / (1 + ratio**2)
        v, y, total = None, x, jnp.zeros_like(x)
        for layer in self.layers:
            basis, unit = radial_basis(y, self.read_filter.shape[1], self.reach, soft)
            h, v = layer(h, v, basis, unit, conditioning)
            move = self.read(h, v, basis, unit) + x * linear(self.read_radial, h)
            total, y = total + move, y + gain * move
        return total - jnp.mean(total, axis=0, keepdims=True)


def relaxing(
    space: Space,
    key: PRNGKeyArray,
    *,
    width: int = 64,
    depth: int = 3,
    vectors: int = 16,
    num_basis: int = 32,
    reach: float = 4.0,
    softness: float = 0.5,
) -> Relaxing:
    """The settings of `directed`; level as of the denoiser's preconditioning."""
    made = directed(
        space, key, width=width, depth=depth, vectors=vectors, num_basis=num_basis,
        reach=reach, softness=softness,
    )  # fmt: skip
    return Relaxing(**{name: getattr(made, name) for name in made.__dataclass_fields__})
