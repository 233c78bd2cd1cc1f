"""netCDF in the shape of ArviZ's InferenceData: one chain of independent draws, or real chains.

`posterior` has x or, of a target that names its numbers, those by name; x is then in
`unconstrained_posterior`. `sample_stats` has the rest. ArviZ knows no weights: of weighted draws
these three groups hold equally weighted ones, resampled, and the drawn ones with their log_weight
are in groups of the same names after `weighted_`. Chains have axes (chain, draw) of their own; what
is left over where they are not of one length is in groups after `rest_`.
"""

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.correction import equal_weights
from demx.outputs import Columns
from demx.outputs.spool import Spool
from demx.space import MeanFree
from demx.types import Target

SLAB = 4096  # rows in memory while draws are resampled or put in order
WEIGHTED, REST = "weighted_", "rest_"
Place = tuple[str, str]  # group and variable


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> str:
    """Returns what is to be told of weighted draws and of chains."""
    import h5netcdf

    chunks = iter(chunks)
    first = next(chunks)
    chunks, told = itertools.chain([first], chunks), ""
    with h5netcdf.File(path, "w") as file:
        if "log_weight" in first:
            log_weight = _in_turn(file, chunks, n, target, WEIGHTED)
            if np.isfinite(log_weight).any():
                told = _resample(file, log_weight, provenance()["sampling_seed"])
            else:  # no reason to lose what was drawn
                told = f"no posterior, for all weights are zero: see {WEIGHTED}posterior"
        elif "island" in first:
            with Spool(path) as spool:
                for columns in chunks:
                    spool.add(columns)
                told = _by_chain(file, spool, target)
        else:
            _in_turn(file, chunks, n, target)
        about = _attributes(provenance())
        for group in (file, *file.groups.values()):
            group.attrs.update(about)
    return told


def _in_turn(
    file, chunks: Iterable[Columns], n: int, target: Target, before: str = ""
) -> np.ndarray:
    """One chain, as drawn, into groups whose names begin so; their log_weight, (n,) or none."""
    log_weight, begun = [], 0
    for columns in chunks:
        rows = slice(begun, begun + len(columns["x"]))
        _put(file, before, columns, target, (1, n), (0, rows))
        log_weight.append(columns.get("log_weight", ()))
        begun = rows.stop
    return np.concatenate(log_weight)


def arranged(island: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows (chain, draw) of samples that depend on each other, and (chain, 1) of those left over.

    island: (n,). Islands that take turns are chains. Others, such as copies of a point, stand side
    by side in one: what they have in common becomes an autocorrelation.
    """
    n, count = len(island), int(island.max()) + 1
    if count == n or (island != np.arange(n) % count).any():
        return np.argsort(island, kind="stable")[None], np.empty((0, 1), int)
    even = n - n % count
    return np.arange(even).reshape(-1, count).T, np.arange(even, n)[:, None]


def _by_chain(file, spool: Spool, target: Target) -> str:
    rows, rest = arranged(np.asarray(spool.read("island")))
    for before, chains in (("", rows), (REST, rest)):
        for i, chain in enumerate(chains):
            for start in range(0, len(chain), SLAB):
                some = chain[start : start + SLAB]
                columns = {name: np.asarray(spool.read(name)[some]) for name in spool.names}
                at = i, slice(start, start + len(some))
                _put(file, before, columns, target, chains.shape, at)
    if len(rows) == 1:
        return ""
    left = f"; one draw more of the first {len(rest)} is in {REST}posterior" if len(rest) else ""
    return f"posterior: {len(rows)} chains of {rows.shape[1]} draws" + left


def _put(file, before: str, columns: Columns, target: Target, shape: tuple[int, int], at) -> None:
    """Columns at a place (chain, draws) of variables (*shape, …), in groups that begin so."""
    for (group, name), (column, axes) in _placed(columns, target).items():
        _variable(file, (before + group, name), shape, column, axes)[at] = column


def _placed(columns: Columns, target: Target) -> dict[Place, tuple[np.ndarray, tuple[str, ...]]]:
    """Where each column belongs, with the names of its axes but the first."""
    x = columns["x"]
    own = ("particle", "axis") if isinstance(target.space, MeanFree) else ("coordinate",)
    found: dict[Place, tuple[np.ndarray, tuple[str, ...]]] = {
        ("sample_stats", k): (v, ()) for k, v in columns.items() if k != "x"
    }
    if not hasattr(target, "named"):
        return found | {("posterior", "x"): (x, own)}
    found["unconstrained_posterior", "x"] = x, own
    for site, values in target.named(x).items():
        name = site.replace("/", ".")  # of netCDF a slash is a group
        values = np.asarray(values)
        if values.size:
            values = values.astype("int8") if values.dtype == bool else values
            axes = tuple(f"{name}_dim_{i}" for i in range(values.ndim - 1))
            found["posterior", name] = values, axes
    return found


def _variable(
    file, place: Place, shape: tuple[int, int], column: np.ndarray, axes: tuple[str, ...]
):
    """The variable, (*shape, …), made when it is first asked for, as are its group and axes."""
    where, name = place
    group = file.groups[where] if where in file.groups else file.create_group(where)
    if name not in group.variables:
        sizes = dict(zip(("chain", "draw", *axes), (*shape, *column.shape[1:]), strict=True))
        for axis, size in sizes.items():
            if axis not in group.dimensions:
                group.dimensions[axis] = size
                group.create_variable(axis, (axis,), int, data=np.arange(size))
        group.create_variable(
            name, (*sizes,), column.dtype, chunks=(1, min(shape[1], 1024), *column.shape[1:]),
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
            place = _variable(file, (group, name), (1, n), like, variable.dimensions[2:])
            _copy(variable, place, rows)
        file.groups[group].attrs["draws"] = f"equally weighted: resampled from those of {where}"
    # of a draw among the weighted
    place = _variable(file, ("sample_stats", "row"), (1, n), rows, ())
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
