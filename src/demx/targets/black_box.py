"""Energies that JAX cannot see into: a NumPy function, a simulation program, a file of tables.

The function is called on the host, from inside compiled programs, and gives energy and gradient
together. It must depend on its argument alone. A process that holds such an energy computes on one
device.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from demx import devices
from demx.errors import GivenUp, UserError
from demx.space import Space, space_of

ZEROS = 1000.0  # kT; in single precision energies below that are known to 1e-4


class Host:
    """The function, called point by point or for whole batches.

    `zero`: subtracted from its energies in double precision: what is large and the same everywhere
    would leave no digits for differences in single precision.
    `calls`: at how many points, the shifted ones of finite differences too. `unasked`: of them
    those that are not finite: they are bad, and the function, which might raise, is not asked.
    `failed`: those where it raised one of `failures`; they are bad too, with their whole batch.
    `seconds`: how long it has taken over the others, and `first` over the first call, which may
    load or compile something, with its number of points. `over`: asked before each call; True:
    give up.
    `raised`: what ended the first program that failed since `stopping` began. `unclaimed`: calls
    that making the target took, and nobody has counted yet.
    """

    def __init__(
        self,
        function: Callable,
        shape: tuple[int, ...],
        batched: bool,
        finite_difference: float | None,
        zero: float = 0.0,
        failures: tuple[type[Exception], ...] = (),
    ):
        self.function, self.shape, self.batched = function, shape, batched
        self.step, self.zero, self.failures = finite_difference, zero, failures
        self.calls, self.unasked, self.failed, self.unclaimed = 0, 0, 0, 0
        self.seconds = 0.0
        self.first: tuple[float, int] | None = None
        self.over: Callable[[], bool] = lambda: False
        self.raised: Exception | None = None
        devices.only_one()

    def __call__(self, x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Energies (…,) and gradients (…, *shape) of points (…, *shape), in their precision."""
        points = np.asarray(x)
        leading = points.shape[: points.ndim - len(self.shape)]
        rows = points.reshape(-1, *self.shape).astype(float)
        # divisions by zero and overflows are nan or ∞, which the door marks and counts
        with np.errstate(all="ignore"):
            try:
                energy, slope = self._differences(rows) if self.step else self._ask(rows)
            except Exception as error:
                self.raised = self.raised or error
                raise
            return (
                (energy - self.zero).reshape(leading).astype(points.dtype),
                slope.reshape(points.shape).astype(points.dtype),
            )

    def count_from(self, x: np.ndarray) -> None:
        """Take as zero the energy of one x, in whole thousands of kT; one call.

        So it is 0 of what is not large, and no last digit that differs between machines changes it.
        """
        self.unclaimed += 1
        energy = float(self(np.asarray(x, float))[0])
        if np.isfinite(energy):
            self.zero = ZEROS * round(energy / ZEROS)

    def _ask(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """E and ∇E of rows (n, *shape); nan of rows that are not finite."""
        finite = np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
        self.calls += int((~finite).sum())
        self.unasked += int((~finite).sum())
        energy, slope = np.full(len(rows), np.nan), np.full(rows.shape, np.nan)
        if self.batched and finite.any():
            count = int(finite.sum())
            if (found := self._call(rows[finite], count)) is not None:
                energy[finite], slope[finite] = self._read(found[0], count)
        elif not self.batched:
            for i in np.flatnonzero(finite):
                if (found := self._call(rows[i], 1)) is not None:
                    energy[i], slope[i] = self._read(found[0], None)
        return energy, slope

    def _call(self, x: np.ndarray, count: int) -> tuple[Any] | None:
        """What the function returns, alone in a tuple; None where it failed as was foreseen."""
        if self.over():
            raise GivenUp("black box: given up")
        self.calls += count
        started = time.perf_counter()
        try:
            return (self.function(x),)
        except self.failures:
            self.failed += count
            return None
        except Exception as error:  # the user's own code may raise anything
            name = type(error).__name__
            raise UserError(
                f"black box: the function raised {name}: {' '.join(str(error).split())}; if there "
                f"is no energy at some points, return nan there, or say failures=({name},)"
            ) from error
        finally:
            taken = time.perf_counter() - started
            self.seconds += taken
            self.first = self.first or (taken, count)

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
    E is what the function gives, less `zero`: log Z is that of this density.
    """

    space: Space
    host: Host = eqx.field(static=True)

    @property
    def calls(self) -> int:
        """At how many points the function has been called for so far."""
        return self.host.calls

    @property
    def unasked(self) -> int:
        """Of `calls`, those at points that are not finite: the function did not see them."""
        return self.host.unasked

    @property
    def failed(self) -> int:
        """Of `calls`, those at which the function raised one of its `failures`."""
        return self.host.failed

    @property
    def zero(self) -> float:
        """Where energies are counted from, in kT."""
        return self.host.zero

    def claim(self) -> int:
        """The energy calls of making this target, for whoever counts them first; 0 after that."""
        made, self.host.unclaimed = self.host.unclaimed, 0
        return made

    @property
    def seconds_per_point(self) -> float:
        """How long the function takes over one point with its gradient, in the mean so far; without
        the first call, as soon as there are others."""
        asked, seconds = self.calls - self.unasked, self.host.seconds
        taken, count = self.host.first or (0.0, 0)
        if asked > count:
            asked, seconds = asked - count, seconds - taken
        return self.calls_per_point * seconds / max(1, asked)

    @property
    def calls_per_point(self) -> int:
        return 1 if self.host.step is None else 2 * int(np.prod(self.space.shape)) + 1

    @property
    def points(self) -> int:
        """The energy calls so far: points with their gradients."""
        return self.calls // self.calls_per_point

    @contextmanager
    def stopping(self, over: Callable[[], bool]) -> Iterator[None]:
        """Within, a program that asks the function once `over()` is true ends with GivenUp.

        JAX passes on as text what was raised on the host; it leaves from here as what it was.
        """
        before = self.host.over, self.host.raised
        self.host.over, self.host.raised = over, None
        try:
            yield
        except Exception as error:
            if self.host.raised is None or error is self.host.raised:
                raise
            raise self.host.raised from error
        finally:
            self.host.over, self.host.raised = before

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


def check_atoms(
    count: int, temperature: float, length: float, trap: float, species: tuple[int, ...] | None
) -> None:
    """What a user says of atoms besides their energy; species: None is what the adapter finds."""
    for name, value in (("temperature", temperature), ("length", length)):
        if not value > 0:
            raise UserError(f"{name}: expected a positive number, got {value}")
    if not trap >= 0:
        raise UserError(f"trap: expected 0 or more, since a negative one drives apart, got {trap}")
    if species is not None and len(species) != count:
        raise UserError(f"species: expected one for each of {count} atoms, got {len(species)}")


def black_box(
    function: Callable,
    *,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    batched: bool = False,
    finite_difference: float | None = None,
    zero: float = 0.0,
    failures: tuple[type[Exception], ...] = (),
) -> BlackBox:
    """A target from a NumPy function of one configuration that returns (E, ∇E), E in units of kT.

    The gradient, not the force. batched: the function takes (N, *shape) and returns (N,) and
    (N, *shape). finite_difference: the function returns E alone, and its gradient is found by
    central differences of that width, with 2·d+1 calls a point. zero: subtracted from E before it
    is rounded to single precision, for an E of which the greater part is the same everywhere.
    failures: exceptions that say that there is no energy at a point (with `batched`, at some point
    of a batch, which then is bad as a whole); any other ends what is computed.
    """
    space = space_of(dim, particles, species)
    if finite_difference is not None and not finite_difference > 0:
        raise UserError(f"finite_difference: expected a positive number, got {finite_difference}")
    host = Host(function, space.shape, batched, finite_difference, zero, failures)
    return BlackBox(space, host)
