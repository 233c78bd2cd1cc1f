"""netCDF in the shape of ArviZ's InferenceData: one chain of independent draws."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.outputs import Columns
from demx.space import MeanFree, Space


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    space: Space,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    import h5netcdf

    own = ("particle", "axis") if isinstance(space, MeanFree) else ("coordinate",)
    with h5netcdf.File(path, "w") as file:
        posterior, stats = (file.create_group(name) for name in ("posterior", "sample_stats"))
        for group, sizes in ((posterior, space.shape), (stats, ())):
            group.dimensions = {"chain": 1, "draw": n, **dict(zip(own, sizes, strict=False))}
            for name, size in group.dimensions.items():
                group.create_variable(name, (name,), int, data=np.arange(len(size)))
        begun = 0
        for columns in chunks:
            rows = slice(begun, begun + len(columns["x"]))
            for name, column in columns.items():
                group, names = (posterior, own) if name == "x" else (stats, ())
                if name not in group.variables:
                    shape = (1, min(n, 1024), *column.shape[1:])
                    group.create_variable(
                        name, ("chain", "draw", *names), column.dtype, chunks=shape,
                        compression="gzip",
                    )  # fmt: skip
                group.variables[name][0, rows] = column
            begun = rows.stop
        about = _attributes(provenance())
        for group in (file, posterior, stats):
            group.attrs.update(about)


def _attributes(provenance: dict[str, Any]) -> dict[str, Any]:
    plain = {k: v if isinstance(v, int | float | str) else json.dumps(v) for k, v in
             provenance.items()}  # fmt: skip
    plain = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
    return {
        **plain,
        "inference_library": "demx",
        "inference_library_version": provenance["demx"],
    }
