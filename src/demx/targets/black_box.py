"""Energies that JAX cannot see into: a NumPy function, a simulation program, a file of tables.

The function is called on the host, from inside compiled programs, and gives energy and gradient
together. It must depend on its argument alone. A process that holds such an energy computes on one
device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from demx import devices
from demx.errors import UserError
from demx.space import Space, space_of


class GivenUp(RuntimeError):
    """The function is not asked any more, and the program that asks it ends (`stopping`)."""


class Host:
    """The function, called point by point or for whole batches.

    `calls`: at how many points it has been asked, the shifted ones of finite differences too.
    `seconds`: how long it has taken over them. `over`: asked before each call; True: give up.
    """

    def __init__(
        self,
        function: Callable,
        shape: tuple[int, ...],
        batched: bool,
        finite_difference: float | None,
    ):
        self.function, self.shape, self.batched = function, shape, batched
        self.step = finite_difference
        self.calls, self.seconds = 0, 0.0
        self.over: Callable[[], bool] = lambda: False
        devices.only_one()

    def __call__(self, x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Energies (…,) and gradients (…, *shape) of points (…, *shape), in their precision."""
        points = np.asarray(x)
        leading = points.shape[: points.ndim - len(self.shape)]
        rows = points.reshape(-1, *self.shape).astype(float)
        # divisions by zero and overflows are nan or ∞, which the door marks and counts
        with np.errstate(all="ignore"):
            energy, slope = self._differences(rows) if self.step else self._ask(rows)
            return (
                energy.reshape(leading).astype(points.dtype),
                slope.reshape(points.shape).astype(points.dtype),
            )

    def _ask(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.batched:
            return self._read(self._call(rows, len(rows)), len(rows))
        parts = [self._read(self._call(row, 1), None) for row in rows]
        return np.array([e for e, _ in parts], float), np.array([g for _, g in parts], float)

    def _call(self, x: np.ndarray, count: int) -> Any:
        if self.over():
            raise GivenUp("black box: given up")
        self.calls += count
        started = time.perf_counter()
        try:
            return self.function(x)
        except Exception as error:  # the user's own code may raise anything
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"black box: the function raised {said}") from error
        finally:
            self.seconds += time.perf_counter() - started

    def _read(self, found: Any, count: int | None) -> tuple[np.ndarray, np.ndarray]:
        """What the function returned, checked; of the energy alone, with a gradient of 0."""
        leading = () if count is None else (count,)
        if self.step:
            found = found, np.zeros((*leading, *self.shape))
        elif not (isinstance(found, tuple | list) and len(found) == 2):
            raise UserError(
                f"black box: expected (energy, gradient), got {type(found).__name__}; for a "
                "function that gives the energy alone say finite_difference=1e-3 (2·d+1 calls "
                "a point)"
            )
        energy, slope = (np.asarray(part, float) for part in found)
        if energy.shape != leading or slope.shape != (*leading, *self.shape):
            raise UserError(
                f"black box: expected an energy of shape {leading} and a gradient of shape "
                f"{(*leading, *self.shape)}, got {energy.shape} and {slope.shape}"
            )
        return energy, slope

    def _differences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(E(x + h e_i) - E(x - h e_i))/2h for every coordinate i: 2·d+1 calls a point."""
        size = int(np.prod(self.shape))
        shifts = self.step * np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)])
        moved = rows[:, None] + shifts.reshape(1, -1, *self.shape)
        energy, _ = self._ask(moved.reshape(-1, *self.shape))
        energy = energy.reshape(len(rows), 2 * size + 1)
        slope = (energy[:, 1 : size + 1] - energy[:, size + 1 :]) / (2 * self.step)
        return energy[:, 0], slope.reshape(rows.shape)


class BlackBox(eqx.Module):
    """log p̃(x) = -E(x) for an E on the host.

    A point costs `calls_per_point` calls of the function, whether its gradient is wanted or not.
    """

    space: Space
    host: Host = eqx.field(static=True)

    @property
    def calls(self) -> int:
        """At how many points the function has been called so far."""
        return self.host.calls

    @property
    def seconds_per_point(self) -> float:
        """How long the function takes over one point with its gradient, in the mean so far."""
        return self.calls_per_point * self.host.seconds / max(1, self.host.calls)

    @property
    def calls_per_point(self) -> int:
        return 1 if self.host.step is None else 2 * int(np.prod(self.space.shape)) + 1

    @property
    def points(self) -> int:
        """The energy calls so far: points with their gradients."""
        return self.calls // self.calls_per_point

    @contextmanager
    def stopping(self, over: Callable[[], bool]) -> Iterator[None]:
        """Within, a program that asks the function once `over()` is true ends with an error."""
        before, self.host.over = self.host.over, over
        try:
            yield
        finally:
            self.host.over = before

    def _both(self, x: Float[Array, "..."]) -> tuple[Array, Array]:
        """E and ∇E at points (…, *shape), by one host call for all of them."""
        leading = x.shape[: x.ndim - len(self.space.shape)]
        shapes = (jax.ShapeDtypeStruct(leading, x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype))
        x = self.space.project(x)
        energy, slope = jax.pure_callback(self.host, shapes, x, vmap_method="expand_dims")
        return energy, self.space.project(slope)

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, ""]:
        @jax.custom_vjp
        def value(x):
            return -self._both(x)[0]

        def forward(x):
            energy, slope = self._both(x)
            return -energy, slope

        value.defvjp(forward, lambda slope, cotangent: (-cotangent * slope,))
        return value(x)

    def log_density_and_score(self, xs: Float[Array, "... N"]) -> tuple[Array, Array]:
        energy, slope = self._both(jnp.moveaxis(xs, -1, 0))
        return -energy, -jnp.moveaxis(slope, 0, -1)


def black_box(
    function: Callable,
    *,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    species: tuple[int, ...] | None = None,
    batched: bool = False,
    finite_difference: float | None = None,
) -> BlackBox:
    """A target from a NumPy function of one configuration that returns (E, ∇E), E in units of kT.

    The gradient, not the force. batched: the function takes (N, *shape) and returns (N,) and
    (N, *shape). finite_difference: the function returns E alone, and its gradient is found by
    central differences of that width, with 2·d+1 calls a point.
    """
    space = space_of(dim, particles, species)
    if finite_difference is not None and not finite_difference > 0:
        raise UserError(f"finite_difference: expected a positive number, got {finite_difference}")
    return BlackBox(space, Host(function, space.shape, batched, finite_difference))
