"""extxyz: one frame a sample, with energy and log_weight.

Of a target that knows its atoms these are the elements, positions in Å, and `energy` in eV; the
energy in units of kT, without which there is no density, is `reduced_energy`. Particles without a
name are X, and those of the second, third, … species H, He, …: ASE's atomic number is the number of
the species.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.errors import UserError
from demx.outputs import Columns
from demx.types import Target

CALLS = "sampling_energy_calls"
WIDTH = 20  # digits left open for the calls, which are known when all is drawn
ELEMENTS = (
    "X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se "
    "Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy "
    "Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn"
)
SYMBOLS = ELEMENTS.split()


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    names, unit = symbols(target), getattr(target, "angstrom", 1.0)
    always = [f"{name}={getattr(target, name):.9g}" for name in ("angstrom", "temperature")
              if hasattr(target, name)]  # fmt: skip
    with path.open("w+", encoding="utf-8", newline="\n") as file:
        place, first = 0, True
        for columns in chunks:
            told = _told(columns, target)
            for row in range(len(columns["x"])):
                words = [*(f"{k}={v[row]:.9g}" for k, v in told.items()), *always]
                if first:
                    words += [_word(k, v) for k, v in provenance().items() if k != CALLS]
                    words.append(f"{CALLS}=")
                x = unit * np.asarray(columns["x"][row], float)
                place = _frame(file, names, x, " ".join(words), first) or place
                first = False
        file.seek(place)
        file.write(str(provenance()[CALLS]).ljust(WIDTH))


def symbols(target: Target) -> tuple[str, ...]:
    """The elements of a target that knows them; otherwise one symbol for each species."""
    if hasattr(target, "symbols"):
        return target.symbols
    kinds = target.space.several or (0,) * target.space.num_particles
    if max(kinds) >= len(SYMBOLS):
        raise UserError(
            f"extxyz has names for {len(SYMBOLS)} species, and there are {max(kinds) + 1}; write "
            "npz, nc or csv"
        )
    return tuple(SYMBOLS[kind] for kind in kinds)


def _told(columns: Columns, target: Target) -> Columns:
    """What stands in a frame beside the positions; `energy` is what ASE takes for one in eV."""
    found = {name: column for name, column in columns.items() if name != "x"}
    if not hasattr(target, "electronvolts"):
        return found
    reduced = found.pop("energy")
    in_ev = target.electronvolts(columns["x"], reduced)
    return {"energy": in_ev, "reduced_energy": reduced, **found}


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{name}={'T' if value else 'F'}"
    if isinstance(value, int | float):
        return f"{name}={value}"
    text = value if isinstance(value, str) else json.dumps(value)
    # a line of a frame is one line, and quotes end a value
    text = text.replace("\\", "/").replace('"', "'").replace("\n", " ")
    return f'{name}="{text}"'


def _frame(file, names: tuple[str, ...], x: np.ndarray, words: str, first: bool) -> int | None:
    """Writes a frame; of the first one returns where its calls are to be written."""
    file.write(f'{len(x)}\nProperties=species:S:1:pos:R:3 pbc="F F F" {words}')
    place = None
    if first:
        place = file.tell()
        file.write(" " * WIDTH)
    flat = np.zeros((len(x), 3))
    flat[:, : x.shape[1]] = x
    lines = (f"{s} {a:.8g} {b:.8g} {c:.8g}" for s, (a, b, c) in zip(names, flat, strict=True))
    file.write("\n" + "\n".join(lines) + "\n")
    return place
