"""SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's preconditioner.

For a parameter matrix with gradient G, averages L of G Gᵀ and R of Gᵀ G, and their eigenvectors,

    G' = Q_Lᵀ G Q_R,    U' = Adam(G'),    θ -= rate · Q_L U' Q_Rᵀ.

Every few steps one round of orthogonal iteration turns the bases: Q_L = qr(L Q_L), columns in the
order of their eigenvalues. A gradient never meets a basis that was made with it (in that of the
first one alone, all but the diagonal of G' is rounding), so the first step only makes bases. The
score of a cluster is learned by very unequal directions of the parameters, and Adam sees only
coordinates. Everything that is not a matrix gets Adam. Matrices of one
shape are updated as one stack: one program for each shape, not for each matrix.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

MEAN = 0.95  # of gradients
SQUARE = 0.95  # of their squares in the eigenbasis, and of L and R
EVERY = 10  # steps between two turns of the bases
SMALL = 1e-8


class Moments(NamedTuple):
    """Averages of G, and of G'² in the eigenbasis."""

    mean: Array
    square: Array


class Side(NamedTuple):
    """L (or R) and its approximate eigenvectors, for one side of k matrices."""

    average: Float[Array, "k m m"]
    basis: Float[Array, "k m m"]


class Stack(NamedTuple):
    """State of k matrices of one shape."""

    moments: Moments
    left: Side
    right: Side


class SoapState(NamedTuple):
    """rest: of all that is no matrix, in one vector. stacks: of the matrices, shape by shape."""

    count: Int[Array, ""]
    rest: Moments
    stacks: list[Stack]


class Cut(NamedTuple):
    """A flat vector cut up: the matrices in stacks (k, m, n), and everything else."""

    stacks: list[Array]
    rest: Array


class Shapes:
    """Which arrays of a list are matrices of which shape, and the way there and back."""

    def __init__(self, arrays: list[Array]):
        self.shapes = [a.shape for a in arrays]
        matrix = [len(shape) == 2 and min(shape) > 1 for shape in self.shapes]
        kinds = sorted({shape for shape, yes in zip(self.shapes, matrix, strict=True) if yes})
        self.groups = [[i for i, s in enumerate(self.shapes) if s == kind] for kind in kinds]
        self.others = [i for i, yes in enumerate(matrix) if not yes]

    def cut(self, arrays: list[Array]) -> Cut:
        stacks = [jnp.stack([arrays[i] for i in group]) for group in self.groups]
        none = [jnp.zeros(0, arrays[0].dtype)]
        return Cut(stacks, jnp.concatenate(none + [arrays[i].ravel() for i in self.others]))

    def join(self, cut: Cut) -> Array:
        """The flat vector again."""
        rows: list = [None] * len(self.shapes)
        for group, stack in zip(self.groups, cut.stacks, strict=True):
            for row, i in enumerate(group):
                rows[i] = stack[row].ravel()
        start = 0
        for i in self.others:
            size = math.prod(self.shapes[i])
            rows[i] = cut.rest[start : start + size]
            start += size
        return jnp.concatenate(rows)


def _swap(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)


def _one_by_one(decompose: Callable[[Array], Array], stack: Float[Array, "k m m"]) -> Array:
    """decompose(matrix) for each of a stack.

    Not all at once: LAPACK shares a batch out over XLA's threads and waits for them. On several
    devices every thread may come to wait like that, and none is left to do the work.
    """
    return jax.lax.map(decompose, stack)


def _started(side: Side) -> tuple[Side, Int[Array, "k m"]]:
    """The eigenvectors of the first averages, largest first; the columns as they were."""
    basis = _one_by_one(lambda a: jnp.linalg.eigh(a)[1][:, ::-1], side.average)
    order = jnp.broadcast_to(jnp.arange(basis.shape[-1]), basis.shape[:-1])
    return side._replace(basis=basis), order


def _turned(side: Side) -> tuple[Side, Int[Array, "k m"]]:
    """One round of orthogonal iteration; and the order that the old columns were taken in."""
    average, basis = side
    order = jnp.argsort(-jnp.sum(basis * (average @ basis), axis=-2), axis=-1)
    in_order = jnp.take_along_axis(basis, order[:, None, :], axis=-1)
    return Side(average, _one_by_one(lambda a: jnp.linalg.qr(a)[0], average @ in_order)), order


def _with_bases(change, stack: Stack) -> Stack:
    """New bases, with the averaged squares in the order of their columns."""
    left, rows = change(stack.left)
    right, columns = change(stack.right)
    square = jnp.take_along_axis(stack.moments.square, rows[:, :, None], axis=1)
    square = jnp.take_along_axis(square, columns[:, None, :], axis=2)
    return Stack(stack.moments._replace(square=square), left, right)


def soap(rate: Callable[[Array], Array], arrays_of: Callable[[Array], list[Array]]):
    """The optimiser of one flat vector of parameters, whose arrays `arrays_of` cuts out of it."""

    def init(flat: Array) -> SoapState:
        cut = Shapes(arrays_of(flat)).cut(arrays_of(flat))

        def side(count: int, size: int) -> Side:
            shape = (count, size, size)
            eye = jnp.broadcast_to(jnp.eye(size, dtype=flat.dtype), shape)
            return Side(jnp.zeros(shape, flat.dtype), eye)

        def moments(a: Array) -> Moments:
            return Moments(jnp.zeros_like(a), jnp.zeros_like(a))

        stacks = [Stack(moments(a), *(side(len(a), m) for m in a.shape[1:])) for a in cut.stacks]
        return SoapState(jnp.zeros((), int), moments(cut.rest), stacks)

    def update(gradient: Array, state: SoapState, params: Array | None = None):
        shapes = Shapes(arrays_of(gradient))
        cut = shapes.cut(arrays_of(gradient))
        first = state.count == 0
        steps = jnp.maximum(state.count, 1).astype(gradient.dtype)
        correction = jnp.sqrt(1 - SQUARE**steps) / (1 - MEAN**steps)
        size = jnp.where(first, 0.0, -rate(state.count) * correction)
        keep_mean, keep_square = (jnp.where(first, 1.0, keep) for keep in (MEAN, SQUARE))

        def adam(g, moments: Moments, turn, back) -> tuple[Array, Moments]:
            mean = keep_mean * moments.mean + (1 - keep_mean) * g
            square = keep_square * moments.square + (1 - keep_square) * turn(g) ** 2
            return back(size * turn(mean) / (jnp.sqrt(square) + SMALL)), Moments(mean, square)

        def averaged(side: Side, outer: Array) -> Side:
            return side._replace(average=SQUARE * side.average + (1 - SQUARE) * outer)

        def one(g: Array, stack: Stack) -> tuple[Array, Stack]:
            left, right = stack.left.basis, stack.right.basis
            step, moments = adam(
                g,
                stack.moments,
                lambda a: _swap(left) @ a @ right,
                lambda a: left @ a @ _swap(right),
            )
            sides = averaged(stack.left, g @ _swap(g)), averaged(stack.right, _swap(g) @ g)
            return step, Stack(moments, *sides)

        same = lambda a: a  # noqa: E731
        rest, rest_moments = adam(cut.rest, state.rest, same, same)
        made = [one(g, stack) for g, stack in zip(cut.stacks, state.stacks, strict=True)]
        stacks = [stack for _, stack in made]
        cases = (
            lambda stacks: stacks,
            lambda stacks: [_with_bases(_started, stack) for stack in stacks],
            lambda stacks: [_with_bases(_turned, stack) for stack in stacks],
        )
        which = jnp.where(first, 1, jnp.where(state.count % EVERY == 0, 2, 0))
        stacks = jax.lax.switch(which, cases, stacks)
        flat = shapes.join(Cut([step for step, _ in made], rest))
        return flat, SoapState(state.count + 1, rest_moments, stacks)

    return optax.GradientTransformation(init, update)
