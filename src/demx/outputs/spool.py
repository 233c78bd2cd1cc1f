"""Columns kept on disk until they can be written, or read, in one piece each."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from demx.outputs import Columns


class Spool:
    """Add chunks of columns; then read every column as one array that stays on disk."""

    def __init__(self, beside: Path):
        self._place = tempfile.TemporaryDirectory(dir=beside.parent, prefix=".spool")
        self._files: dict[str, BinaryIO] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self.rows = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()
        self._place.cleanup()

    @property
    def names(self) -> list[str]:
        return [*self._files]

    def add(self, columns: Columns) -> None:
        for name, column in columns.items():
            if name not in self._files:
                path = Path(self._place.name) / str(len(self._files))
                self._files[name] = path.open("w+b")
                self._kinds[name] = column.dtype, column.shape[1:]
            self._files[name].write(np.ascontiguousarray(column).tobytes())
        self.rows += len(next(iter(columns.values())))

    def shape(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        dtype, shape = self._kinds[name]
        return dtype, (self.rows, *shape)

    def pieces(self, name: str, size: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a column, some at a time: what is mapped would count as memory."""
        file = self._files[name]
        file.seek(0)
        while piece := file.read(size):
            yield piece

    def read(self, name: str) -> np.ndarray:
        """(rows, …), mapped from disk."""
        dtype, shape = self.shape(name)
        self._files[name].flush()
        return np.memmap(self._files[name], dtype, "r", shape=shape)


class Turned:
    """Rows come in, some at a time; columns go out, each of which stands in one piece on disk.

    So every byte is read once, however many columns there are.
    """

    def __init__(self, beside: Path, rows: int):
        self._file = tempfile.TemporaryFile(dir=beside.parent)  # noqa: SIM115
        self._rows, self._begun = rows, 0

    def __enter__(self) -> "Turned":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, columns: Sequence[np.ndarray]) -> None:
        """The next rows, (some,) of every column."""
        for i, column in enumerate(columns):
            self._file.seek(8 * (i * self._rows + self._begun))
            self._file.write(np.ascontiguousarray(column, np.float64).tobytes())
        self._begun += len(columns[0])

    def column(self, i: int) -> np.ndarray:
        """(rows,)"""
        self._file.seek(8 * i * self._rows)
        return np.frombuffer(self._file.read(8 * self._rows), np.float64)
