"""npz: plain arrays that numpy reads without executing anything."""

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.outputs import Columns
from demx.outputs.spool import Spool
from demx.types import Target


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    with Spool(path) as spool:
        for columns in chunks:
            spool.add(columns)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in spool.names:
                _add(archive, name, *spool.shape(name), spool.pieces(name))
            about = np.array(json.dumps(provenance()))
            _add(archive, "provenance", about.dtype, about.shape, [about.tobytes()])


def _add(
    archive: zipfile.ZipFile,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    pieces: Iterable[bytes],
) -> None:
    described = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": described, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for piece in pieces:
            member.write(piece)
