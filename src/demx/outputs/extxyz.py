"""extxyz: one frame a sample, with energy and log_weight; particles without a name are 'X'."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.outputs import Columns
from demx.types import Target

CALLS = "sampling_energy_calls"
WIDTH = 20  # digits left open for the calls, which are known when all is drawn


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    with path.open("w+", encoding="utf-8", newline="\n") as file:
        place, first = None, True
        for columns in chunks:
            for row in range(len(columns["x"])):
                words = [f"{k}={v[row]:.9g}" for k, v in columns.items() if k != "x"]
                if first:
                    words += [_word(k, v) for k, v in provenance().items() if k != CALLS]
                    words.append(f"{CALLS}=")
                place = _frame(file, columns["x"][row], " ".join(words), first) or place
                first = False
        file.seek(place)
        file.write(str(provenance()[CALLS]).ljust(WIDTH))


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{name}={'T' if value else 'F'}"
    if isinstance(value, int | float):
        return f"{name}={value}"
    text = value if isinstance(value, str) else json.dumps(value)
    # a line of a frame is one line, and quotes end a value
    text = text.replace("\\", "/").replace('"', "'").replace("\n", " ")
    return f'{name}="{text}"'


def _frame(file, x: np.ndarray, words: str, first: bool) -> int | None:
    """Writes a frame; of the first one returns where its calls are to be written."""
    file.write(f'{len(x)}\nProperties=species:S:1:pos:R:3 pbc="F F F" {words}')
    place = None
    if first:
        place = file.tell()
        file.write(" " * WIDTH)
    flat = np.zeros((len(x), 3))
    flat[:, : x.shape[1]] = x
    lines = (f"X {a:.8g} {b:.8g} {c:.8g}" for a, b, c in flat)
    file.write("\n" + "\n".join(lines) + "\n")
    return place
