"""npz: plain arrays that numpy reads without executing anything."""

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.outputs import Columns
from demx.outputs.spool import Spool
from demx.space import Space

PIECE = 1 << 20  # bytes compressed at a time


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    space: Space,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    with Spool(path) as spool:
        for columns in chunks:
            spool.add(columns)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in spool.names:
                _add(archive, name, spool.read(name))
            _add(archive, "provenance", np.array(json.dumps(provenance())))


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(member, header)
        flat = array.reshape(-1)
        step = max(1, PIECE // flat.itemsize)
        for start in range(0, flat.size, step):
            member.write(flat[start : start + step].tobytes())
