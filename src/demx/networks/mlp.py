"""A multilayer perceptron with sinusoidal embeddings: the paper's network for mixtures."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.networks.embedding import sinusoidal
from demx.space import Space


class MLP(eqx.Module):
    """[emb(x_1), …, emb(x_d), emb(level)] → depth residual layers → R^d (paper, app. F.1).

    Sees x itself too, which the embeddings alone cannot extrapolate.
    """

    first: eqx.nn.Linear
    hidden: list[eqx.nn.Linear]
    last: eqx.nn.Linear
    embedding: int
    scale: float

    def activations(self, space: Space) -> int:
        """Floats of the largest array for one configuration: its features."""
        return max(self.first.in_features, self.first.out_features)

    def __call__(self, level: Float[Array, ""], x: Float[Array, "..."]) -> Float[Array, "..."]:
        flat = x.ravel()
        features = [
            flat,
            sinusoidal(flat, self.embedding, self.scale).ravel(),
            sinusoidal(level, self.embedding, self.scale),
        ]
        h = jax.nn.gelu(self.first(jnp.concatenate(features)))
        for layer in self.hidden:
            h = h + jax.nn.gelu(layer(h))
        return self.last(h).reshape(x.shape)


def mlp(
    space: Space,
    key: PRNGKeyArray,
    *,
    width: int = 128,
    depth: int = 3,
    embedding: int = 128,
    scale: float = 25.0,
) -> MLP:
    """`depth` hidden layers of `width`; `embedding` features a number, angles up to `scale`·x."""
    if width < 1 or depth < 1 or embedding < 2:
        raise ValueError(
            "expected width >= 1, depth >= 1, embedding >= 2, "
            f"got width={width}, depth={depth}, embedding={embedding}"
        )
    embedding -= embedding % 2
    size = space.shape[0] if len(space.shape) == 1 else space.shape[0] * space.shape[1]
    key_first, key_last, *keys = jax.random.split(key, depth + 2)
    last = eqx.nn.Linear(width, size, key=key_last)
    return MLP(
        eqx.nn.Linear(size * (embedding + 1) + embedding, width, key=key_first),
        [eqx.nn.Linear(width, width, key=k) for k in keys],
        # starting at zero output makes the preconditioned model exact for a Gaussian target
        eqx.tree_at(lambda m: (m.weight, m.bias), last, replace_fn=jnp.zeros_like),
        embedding,
        scale,
    )
