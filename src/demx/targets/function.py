"""Any JAX function as a target."""

import traceback
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from demx.space import MeanFree, Space, image, normal

IMAGES = 16
CHECKED = 256  # points where an energy and its gradient are looked at before anything is trained
CALLS = CHECKED + 1  # of an energy before anything is trained
TOLERATED = 0.5  # share of them without a number at which an energy is not trained on


class FunctionTarget(eqx.Module):
    """log p̃(x) = -energy(x), for an energy that maps one x of `space.shape` to a scalar."""

    energy: Callable[[Array], Array]
    space: Space

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, ""]:
        return -self.energy(x)


def check_shape(energy: Callable[[Array], Array], space: Space) -> None:
    """Stop early if the energy of one x is not a floating-point scalar: by tracing, no call."""
    x = jax.ShapeDtypeStruct(space.shape, jnp.zeros(()).dtype)
    try:
        out = jax.eval_shape(energy, x)
    except Exception as error:
        mend = "mend it, or name the shape it is written for (dim, particles; --dim, --shape)"
        if isinstance(error, jax.errors.JAXTypeError):
            mend = (
                "write it for one configuration alone in jax.numpy (jnp.where for an if), or, if "
                "that cannot be, wrap it with demx.targets.black_box"
            )
        raise ValueError(
            f"energy: could not be traced for one x of shape {space.shape} "
            f"({_one_line(error, energy)}); {mend}"
        ) from error
    shape = getattr(out, "shape", None)
    if shape != ():
        raise ValueError(
            f"energy: expected a scalar for one x of shape {space.shape}, got "
            f"{f'shape {shape}' if shape is not None else type(out).__name__}; "
            "write the energy of one configuration, demx batches it"
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"energy: expected a floating-point scalar, got dtype {out.dtype}")


class _Strict(np.ndarray):
    """An array that refuses an index beyond its end, as NumPy does, but takes arrays of indices as
    JAX does: tables are padded with such, and what they find is masked."""

    def __getitem__(self, index):
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, (list, np.ndarray, jax.Array)):
                return jnp.asarray(np.asarray(self))[index]
        return super().__getitem__(index)


def _check_indices(energy: Callable[[Array], Array], space: Space) -> None:
    """Stop early if the energy asks for a coordinate that x has not.

    JAX takes the last one instead, and says nothing; an array of NumPy is not so kind. What else it
    cannot do says nothing of the energy.
    """
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            energy(np.ones(space.shape, np.float32).view(_Strict))
    except IndexError as error:
        raise ValueError(
            f"energy: asks for what one x of shape {space.shape} has not "
            f"({_one_line(error, energy)}); name the shape it is written for (dim, particles; "
            "--dim, --shape)"
        ) from error
    except Exception:
        return


def check_energy(energy: Callable[[Array], Array], space: Space, scale: float = 1.0) -> None:
    """Stop early if the energy is not a finite scalar: shape by tracing, values at 256 points.

    +∞ is outside the support, and allowed. Points that are nan, or have no gradient, are warned of,
    and refused if they are more than half.

    Of particles some of the points are images of others: their energies must be the same.
    """
    check_shape(energy, space)
    _check_indices(energy, space)
    points = scale * normal(jax.random.key(0), space, (CHECKED,))
    if isinstance(space, MeanFree):
        keys = jax.random.split(jax.random.key(1), IMAGES)
        images = jax.vmap(lambda key, x: image(key, space, x))(keys, points[:IMAGES])
        points = points.at[-IMAGES:].set(images)
    try:
        values, slopes = jax.jit(jax.vmap(jax.value_and_grad(energy)))(points)
        values = jax.block_until_ready(values)
    except Exception as error:
        raise ValueError(
            f"energy: no gradient could be had by jax.grad ({_one_line(error)}); write it with "
            "jax.numpy, or wrap it with demx.targets.black_box"
        ) from error
    good = jnp.isfinite(values) & jnp.all(jnp.isfinite(slopes), axis=tuple(range(1, slopes.ndim)))
    if not jnp.any(good):
        raise ValueError(
            "energy: expected finite values and gradients, got none (nan or infinite) at "
            f"{CHECKED} normal points of scale {scale}; look at its value at one of them, check "
            "units, or name another scale"
        )
    wrong = int(jnp.sum(~good & (values != jnp.inf)))
    if wrong:
        said = (
            f"energy: {wrong} of {CHECKED} normal points of scale {scale} have no finite energy "
            "with a finite gradient; "
        )
        if wrong > TOLERATED * CHECKED:
            raise ValueError(said + _MEND)
        warnings.warn(said + f"they are counted as bad and left out. {_MEND}", stacklevel=2)
    if isinstance(space, MeanFree):
        here, there = values[:IMAGES], values[-IMAGES:]
        both = jnp.isfinite(here) & jnp.isfinite(there)
        # rounding: energies of particles that overlap are sums of huge terms
        off = both & (jnp.abs(here - there) > 1e-2 + 1e-3 * jnp.abs(here))
        if jnp.any(off):
            first = int(jnp.argmax(off))
            raise ValueError(
                "energy: expected the same when particles are turned, reflected or exchanged, got "
                f"{float(here[first]):.5g} and {float(there[first]):.5g}; name the species of "
                "particles that differ, species=(0, 0, 1, …) or --species 0,0,1,…, or take one "
                "flat vector, dim=… or --dim …"
            )


_MEND = (
    "Where x is restricted, take a variable that is not (of x > 0 its logarithm u: energy(exp(u)) "
    "- sum(u)), or return inf outside; or name another scale"
)


def _one_line(error: Exception, energy: Callable | None = None) -> str:
    """What is wrong, and in which line of the energy's own file."""
    file = getattr(getattr(energy, "__code__", None), "co_filename", None)
    steps = traceback.extract_tb(error.__traceback__)
    lines = [step.lineno for step in steps if step.filename == file]
    at = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{at}: {next(iter(str(error).splitlines()), '')}"
