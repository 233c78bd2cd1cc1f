"""Samples into files, chunk by chunk: the suffix decides how.

.npz      arrays x, energy, log_weight, … and `provenance`, JSON text
.extxyz   frames of particles for ASE and its friends, in its units where the target has them
.nc       netCDF as ArviZ's InferenceData: equally weighted draws in `posterior`
.csv      a summary, one line an observable: mean, sd, quantiles, with standard errors
"""

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.errors import UserError
from demx.evaluate.observables import entry_names
from demx.space import MeanFree
from demx.types import Target

Columns = dict[str, np.ndarray]  # x: (rows, *shape); energy, log_weight, …: (rows,)
WRITERS = {
    ".npz": "demx.outputs.npz",
    ".extxyz": "demx.outputs.extxyz",
    ".xyz": "demx.outputs.extxyz",
    ".nc": "demx.outputs.netcdf",
    ".csv": "demx.outputs.table",
}


def check(path: Path, target: Target) -> None:
    """Refuse a name or a space that nothing can be written for, before anything is drawn."""
    space = target.space
    if path.suffix not in WRITERS:
        raise UserError(
            f"{path}: expected a name that ends in {', '.join(WRITERS)}, got {path.suffix!r}"
        )
    if path.is_dir():
        raise UserError(f"{path}: expected a file, found a directory")
    if path.suffix in (".extxyz", ".xyz") and not (isinstance(space, MeanFree) and space.dim <= 3):
        raise UserError(
            f"{path}: extxyz holds particles in up to 3 dimensions, and these samples have shape "
            f"{space.shape}; write npz, nc or csv"
        )
    if path.suffix in (".extxyz", ".xyz"):
        from demx.outputs.extxyz import symbols

        symbols(target)
    if path.suffix in (".nc", ".csv"):
        entry_names(space, getattr(target, "named", None))
    if path.suffix == ".nc":
        try:
            import h5netcdf  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"{path}: netCDF needs h5netcdf; pip install '.[arviz]' in demx's "
                "directory, or write npz"
            ) from error


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> str:
    """Chunks of n samples in all into a file, which is there whole or not at all.

    provenance: asked when the last chunk is through, for it tells what drawing them has cost.
    Returns what a user should know of the file, if there is anything.
    """
    check(path, target)
    writer = importlib.import_module(WRITERS[path.suffix])
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            told = writer.write(partial, chunks, n, target, provenance)
            os.replace(partial, path)
            return told or ""
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error})") from error
