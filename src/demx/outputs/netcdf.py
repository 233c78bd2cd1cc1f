"""netCDF in the shape of ArviZ's InferenceData: one chain of independent draws.

`posterior` has x or, of a target that names its numbers, those by name; x is then in
`unconstrained_posterior`. `sample_stats` has the rest. ArviZ knows no weights: of weighted draws
these three groups hold equally weighted ones, resampled, and the drawn ones with their log_weight
are in groups of the same names after `weighted_`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.correction import equal_weights
from demx.errors import UserError
from demx.outputs import Columns
from demx.space import MeanFree
from demx.types import Target

SLAB = 4096  # rows in memory while draws are resampled
WEIGHTED = "weighted_"
Place = tuple[str, str]  # group and variable


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> str:
    """Returns what is to be told of weighted draws."""
    import h5netcdf

    log_weight, begun = [], 0
    with h5netcdf.File(path, "w") as file:
        for columns in chunks:
            rows = slice(begun, begun + len(columns["x"]))
            before = WEIGHTED if "log_weight" in columns else ""
            for (group, name), (column, names) in _placed(columns, target).items():
                place = _variable(file, (before + group, name), n, column, names)
                place[0, rows] = column
            if before:
                log_weight.append(np.asarray(columns["log_weight"]))
            begun = rows.stop
        about, told = _attributes(provenance()), ""
        if log_weight:
            told = _resample(file, np.concatenate(log_weight), about["sampling_seed"])
        for group in (file, *file.groups.values()):
            group.attrs.update(about)
    return told


def _placed(columns: Columns, target: Target) -> dict[Place, tuple[np.ndarray, tuple[str, ...]]]:
    """Where each column belongs, with the names of its axes but the first."""
    x = columns["x"]
    own = ("particle", "axis") if isinstance(target.space, MeanFree) else ("coordinate",)
    found = {("sample_stats", k): (v, ()) for k, v in columns.items() if k != "x"}
    if not hasattr(target, "named"):
        return found | {("posterior", "x"): (x, own)}
    found["unconstrained_posterior", "x"] = x, own
    for site, values in target.named(x).items():
        name = site.replace("/", ".")  # of netCDF a slash is a group
        if name in ("chain", "draw"):
            raise UserError(f"{name}: expected no site of this name, for ArviZ has axes called so")
        values = np.asarray(values)
        if values.size:
            values = values.astype("int8") if values.dtype == bool else values
            axes = tuple(f"{name}_dim_{i}" for i in range(values.ndim - 1))
            found["posterior", name] = values, axes
    return found


def _variable(file, place: Place, n: int, column: np.ndarray, axes: tuple[str, ...]):
    """The variable, (1, n, …), made when it is first asked for, as are its group and axes."""
    where, name = place
    group = file.groups[where] if where in file.groups else file.create_group(where)
    if name not in group.variables:
        sizes = {"chain": 1, "draw": n, **dict(zip(axes, column.shape[1:], strict=True))}
        for axis, size in sizes.items():
            if axis not in group.dimensions:
                group.dimensions[axis] = size
                group.create_variable(axis, (axis,), int, data=np.arange(size))
        group.create_variable(
            name, (*sizes,), column.dtype, chunks=(1, min(n, 1024), *column.shape[1:]),
            compression="gzip",
        )  # fmt: skip
    return group.variables[name]


def _resample(file, log_weight: np.ndarray, seed: int) -> str:
    """Equally weighted draws from the weighted ones, in the order in which these were drawn.

    Copies of one draw stand side by side: its weight becomes an autocorrelation, so that ArviZ's
    effective sample size and standard errors know of it.
    """
    n = len(log_weight)
    rows = np.sort(equal_weights(log_weight, n, seed))
    for where in [name for name in file.groups if name.startswith(WEIGHTED)]:
        source, group = file.groups[where], where.removeprefix(WEIGHTED)
        source.attrs["draws"] = f"as drawn, weighted by log_weight of {WEIGHTED}sample_stats"
        for name, variable in source.variables.items():
            if variable.dimensions[:2] != ("chain", "draw") or name == "log_weight":
                continue
            like = np.empty((0, *variable.shape[2:]), variable.dtype)
            place = _variable(file, (group, name), n, like, variable.dimensions[2:])
            _copy(variable, place, rows)
        file.groups[group].attrs["draws"] = f"equally weighted: resampled from those of {where}"
    place = _variable(file, ("sample_stats", "row"), n, rows, ())  # of a draw among the weighted
    place[0] = rows
    return (
        f"posterior: {n} equally weighted draws, resampled from the weighted ones "
        f"({len(np.unique(rows))} of them are different); those are in {WEIGHTED}posterior"
    )


def _copy(source, place, rows: np.ndarray) -> None:
    """place[0] = source[0][rows], rows in ascending order, slab by slab."""
    for low in range(0, source.shape[1], SLAB):
        begin, end = np.searchsorted(rows, [low, low + SLAB])
        if begin == end:
            continue
        slab = source[0, low : low + SLAB]
        for start in range(begin, end, SLAB):
            stop = min(start + SLAB, end)
            place[0, start:stop] = slab[rows[start:stop] - low]


def _attributes(provenance: dict[str, Any]) -> dict[str, Any]:
    plain = {k: v if isinstance(v, int | float | str) else json.dumps(v) for k, v in
             provenance.items()}  # fmt: skip
    plain = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
    return {
        **plain,
        "inference_library": "demx",
        "inference_library_version": provenance["demx"],
    }
