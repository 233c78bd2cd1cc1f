"""SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's preconditioner.

For a parameter matrix with gradient G, averages L of G Gᵀ and R of Gᵀ G, and their eigenvectors,

    G' = Q_Lᵀ G Q_R,    U' = Adam(G'),    θ -= rate · Q_L U' Q_Rᵀ.

Every few steps one round of orthogonal iteration turns the bases: Q_L = qr(L Q_L), columns in the
order of their eigenvalues. A gradient never meets a basis that was made with it (in that of the
first one alone, all but the diagonal of G' is rounding), so the first step only makes bases. The
score of a cluster is learned by very unequal directions of the parameters; Adam sees coordinates
and takes several times as many steps. Everything that is not a matrix gets Adam.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

MEAN = 0.95  # of gradients
SQUARE = 0.95  # of their squares in the eigenbasis, and of L and R
EVERY = 10  # steps between two turns of the bases
SMALL = 1e-8


class Moments(NamedTuple):
    """Averages for one parameter array: of G, and of G'² in the eigenbasis."""

    mean: Array
    square: Array


class Side(NamedTuple):
    """L (or R) and its approximate eigenvectors, for one side of a matrix."""

    average: Float[Array, "m m"]
    basis: Float[Array, "m m"]


class SoapState(NamedTuple):
    """moments: of each array. sides: (left, right) of each matrix, None of other arrays."""

    count: Int[Array, ""]
    moments: list[Moments]
    sides: list[tuple[Side, Side] | None]


def _turned(side: Side) -> tuple[Side, Int[Array, " m"]]:
    """One round of orthogonal iteration; and the order that the old columns were taken in."""
    average, basis = side
    order = jnp.argsort(-jnp.sum(basis * (average @ basis), axis=0))
    return Side(average, jnp.linalg.qr(average @ basis[:, order])[0]), order


def _started(side: Side) -> Side:
    """The eigenvectors of the first gradient's average, largest first."""
    return side._replace(basis=jnp.linalg.eigh(side.average)[1][:, ::-1])


def _bases(
    count: Array, left: Side, right: Side, square: Array
) -> tuple[Side, Side, Float[Array, "m n"]]:
    """Bases for the next step, with the averaged squares in the order of their columns."""

    def turn(_):
        new_left, rows = _turned(left)
        new_right, columns = _turned(right)
        return new_left, new_right, square[rows][:, columns]

    cases = (
        lambda _: (left, right, square),
        lambda _: (_started(left), _started(right), square),
        turn,
    )
    which = jnp.where(count == 0, 1, jnp.where(count % EVERY == 0, 2, 0))
    return jax.lax.switch(which, cases, None)


def soap(rate: Callable[[Array], Array], arrays_of: Callable[[Array], list[Array]]):
    """The optimiser of one flat vector of parameters, whose arrays `arrays_of` cuts out of it."""

    def is_matrix(a: Array) -> bool:
        return a.ndim == 2 and min(a.shape) > 1

    def init(flat: Array) -> SoapState:
        arrays = arrays_of(flat)
        moments = [Moments(jnp.zeros_like(a), jnp.zeros_like(a)) for a in arrays]

        def side(size: int) -> Side:
            return Side(jnp.zeros((size, size), flat.dtype), jnp.eye(size, dtype=flat.dtype))

        sides = [(side(a.shape[0]), side(a.shape[1])) if is_matrix(a) else None for a in arrays]
        return SoapState(jnp.zeros((), int), moments, sides)

    def update(gradient: Array, state: SoapState, params: Array | None = None):
        first = state.count == 0
        steps = jnp.maximum(state.count, 1).astype(gradient.dtype)
        correction = jnp.sqrt(1 - SQUARE**steps) / (1 - MEAN**steps)
        size = jnp.where(first, 0.0, -rate(state.count) * correction)
        keep_mean, keep_square = (jnp.where(first, 1.0, keep) for keep in (MEAN, SQUARE))
        updates, moments, sides = [], [], []
        for g, (mean, square), both in zip(
            arrays_of(gradient), state.moments, state.sides, strict=True
        ):
            mean = keep_mean * mean + (1 - keep_mean) * g
            turn, back = (lambda a: a), (lambda a: a)
            if both is not None:
                q_l, q_r = both[0].basis, both[1].basis
                turn = lambda a, q_l=q_l, q_r=q_r: q_l.T @ a @ q_r  # noqa: E731
                back = lambda a, q_l=q_l, q_r=q_r: q_l @ a @ q_r.T  # noqa: E731
            square = keep_square * square + (1 - keep_square) * turn(g) ** 2
            updates.append(back(size * turn(mean) / (jnp.sqrt(square) + SMALL)).ravel())
            if both is not None:
                left, right = (
                    side._replace(average=SQUARE * side.average + (1 - SQUARE) * outer)
                    for side, outer in zip(both, (g @ g.T, g.T @ g), strict=True)
                )
                left, right, square = _bases(state.count, left, right, square)
                both = (left, right)
            moments.append(Moments(mean, square))
            sides.append(both)
        return jnp.concatenate(updates), SoapState(state.count + 1, moments, sides)

    return optax.GradientTransformation(init, update)
