"""The control of a diffusion, a network guided by the score of the target, and its losses.

    f_θ(t, x) = u(t) F_θ(l(t), x/σ) + a_θ(t) · clip(∇log p̃(x)),      t in [0, 1]

with σ the reference's, and at every step the level l of what noise hides of the end, and the size u
that a control then has (`demx.methods.steps`): F is of order 1 from the first step to the last.
With F = 0 at the start (the last layers of the networks are zero) an untrained control only follows
a_θ(t) = `start` times the score (PIS, arXiv 2111.15141; DDS, arXiv 2302.13834). Losses are
functions of the log weights of a batch of paths (arXiv 2307.01198).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from demx.methods.steps import Kernels
from demx.model import CACHE
from demx.networks.embedding import sinusoidal
from demx.space import Space

FEATURES = 16  # of the time, for a function as smooth as a(t)


class Gate(eqx.Module):
    """a(t) = start + w · silu(W [cos, sin](t f_k) + b), w = 0 at first."""

    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray, start: float, width: int = 32):
        key_hidden, key_last = jax.random.split(key)
        self.hidden = eqx.nn.Linear(FEATURES, width, key=key_hidden)
        last = eqx.nn.Linear(width, "scalar", key=key_last)
        zeros = jnp.zeros_like(last.weight), jnp.full_like(last.bias, start)
        self.last = eqx.tree_at(lambda m: (m.weight, m.bias), last, zeros)

    def __call__(self, t: Float[Array, ""]) -> Float[Array, ""]:
        return self.last(jax.nn.silu(self.hidden(sinusoidal(t, FEATURES, 8.0))))


class AsItIs(eqx.Module):
    """log r(t) = 0: the noise of the process."""

    def __call__(self, t: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.zeros_like(t)


class Guided(eqx.Module):
    """f(step, x, ∇log p̃(x)) for one x; the score comes from outside, where energies are counted.

    detach_score: no derivative of the score is taken, so no second derivatives of the energy, whose
    products along a path overflow where modes are much narrower than σ; gradients of the KL are
    then biased. log_width: log r(t), of the noise that goes with the control.
    """

    network: Callable[[Array, Array], Array]
    gate: Gate
    log_width: Callable[[Array], Array]
    space: Space
    scale: float
    detach_score: bool

    @property
    def rows_in_cache(self) -> int:
        """How many configurations a forward and backward pass should take at once."""
        return max(2, CACHE // self.network.activations(self.space))

    def __call__(
        self, step: Kernels, x: Float[Array, "..."], score: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        if self.detach_score:
            score = jax.lax.stop_gradient(score)
        learned = step.unit * self.network(step.level, x / self.scale)
        return self.space.project(learned + self.gate(step.time) * score)


def limit(vectors: Float[Array, "..."], bound: Float[ArrayLike, ""]) -> Float[Array, "..."]:
    """Vectors (last axis) cut to length `bound`; the derivative is finite also at 0."""
    # scaled by the largest component: the square of a force of 1e20 overflows
    largest = jnp.max(jnp.abs(vectors), axis=-1, keepdims=True)
    largest = jax.lax.stop_gradient(jnp.maximum(largest, jnp.finfo(vectors.dtype).tiny))
    squared = jnp.sum((vectors / largest) ** 2, axis=-1, keepdims=True)
    over = squared > (bound / largest) ** 2
    # the root is only taken where the vector is long
    length = largest * jnp.sqrt(jnp.where(over, squared, 1.0))
    return jnp.where(over, vectors * (jnp.where(over, bound, 1.0) / length), vectors)


class KL(eqx.Module):
    """-mean log w = KL(forward | backward) - log Z; a sum over paths, so it can be split."""

    detached = False
    whole = False

    def __call__(self, log_weight: Float[Array, " n"], size: int) -> Float[Array, ""]:
        return -jnp.sum(log_weight) / size


class LogVariance(eqx.Module):
    """Var log w over the whole batch; no gradient passes through the paths."""

    detached = True
    whole = True

    def __call__(self, log_weight: Float[Array, " n"], size: int) -> Float[Array, ""]:
        return jnp.sum((log_weight - jnp.mean(log_weight)) ** 2) / max(1, size - 1)


class LogHuber(eqx.Module):
    """Σ H(log w - median)/n with H(d) = d² up to δ and δ(2|d| - δ) beyond, δ = 3 median |d|.

    Least, as the variance is, where all weights are equal. But of a path that ends with particles
    on top of each other log w is -10⁴ and lower, and its square would decide an update alone. A
    path whose end has no finite energy, of weight 0, has no part in it.
    """

    detached = True
    whole = True

    def __call__(self, log_weight: Float[Array, " n"], size: int) -> Float[Array, ""]:
        known = jnp.isfinite(log_weight)
        middle = lambda a: jax.lax.stop_gradient(jnp.nanmedian(jnp.where(known, a, jnp.nan)))  # noqa: E731
        away = jnp.where(known, log_weight, middle(log_weight)) - middle(log_weight)
        bound = 3 * middle(jnp.abs(away))
        far = jnp.abs(away)
        return jnp.sum(jnp.where(far <= bound, away**2, bound * (2 * far - bound))) / size


AS_IT_IS = AsItIs()
# log r(t) of a key: an optimal control in discrete time has less noise than the process
NOISES = {"fixed": lambda key: AS_IT_IS, "learned": lambda key: Gate(key, 0.0)}

LOSSES = {"kl": KL, "log_variance": LogVariance, "log_huber": LogHuber}


def effective_share(log_weight: Float[Array, " n"]) -> Float[Array, ""]:
    """(Σ w)²/(n Σ w²), in (0, 1]; 0 if every weight is 0."""
    largest = jnp.max(log_weight)
    w = jnp.exp(log_weight - jnp.where(jnp.isfinite(largest), largest, 0.0))
    squares = jnp.sum(w * w)
    return jnp.sum(w) ** 2 / (w.size * jnp.where(squares > 0, squares, 1.0))
