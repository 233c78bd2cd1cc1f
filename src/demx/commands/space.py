"""What commands ask about the space of an energy function, and how they show its file."""

import sys
from typing import Annotated, Any, Literal

from demx.commands.options import optional
from demx.errors import UserError

Dim = Annotated[int | None, optional("INT")]
Shape = Annotated[str | None, optional("N,DIM")]
Symmetry = Literal["none", "particles"]
Species = Annotated[str | None, optional("0,0,1,…", "all equal")]


def space_of(
    dim: int | None, shape: str | None, symmetry: Symmetry, species: str | None = None
) -> dict[str, Any]:
    """--dim, --shape, --symmetry and --species as arguments `dim`, or `particles` and `species`, of
    `demx.fit`."""
    if species is not None and symmetry != "particles":
        raise UserError("--species: needs --shape n,dimension and --symmetry particles")
    if shape is None:
        if symmetry == "particles":
            raise UserError("--symmetry particles: needs --shape n,dimension, such as 13,3")
        return {} if dim is None else {"dim": dim}
    if dim is not None:
        raise UserError("expected one of --dim and --shape, got both")
    sizes = _numbers("--shape", shape, "13,3")
    if len(sizes) == 1:
        raise UserError(
            f"--shape {shape}: one number; say --dim {shape} for x in R^{shape}, or --shape "
            f"{shape},3 --symmetry particles for so many particles in space"
        )
    if symmetry == "none" or len(sizes) != 2:
        raise UserError(
            f"--shape {shape}: two numbers are n particles in so many dimensions, with --symmetry "
            "particles; an energy without their symmetry takes one flat vector, --dim"
        )
    if species is None:
        return {"particles": sizes}
    kinds = _numbers("--species", species, "0,0,1,1,1")
    if len(kinds) != sizes[0]:
        raise UserError(
            f"--species: expected one number for each of {sizes[0]} particles, got {len(kinds)}"
        )
    return {"particles": sizes, "species": kinds}


def _numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(
            f"{option}: expected whole numbers such as {example}, got {text!r}"
        ) from error


def options(
    dim: int | None,
    shape: str | None,
    symmetry: Symmetry,
    species: str | None,
    scale: float | None,
) -> list[str]:
    """The same as arguments of another `demx` command."""
    space_of(dim, shape, symmetry, species)
    given = {"--dim": dim, "--shape": shape, "--species": species, "--scale": scale}
    told = [text for name, value in given.items() if value is not None for text in (name, value)]
    return [*map(str, told), *(["--symmetry", symmetry] if symmetry != "none" else [])]


def introduce(target: str) -> None:
    """First lines of the docstrings in FILE.py:NAME, and its defaults, for a user to see that it is
    the right one."""
    from demx import source

    found = source.parse(target)
    if found is not None and found.path.exists():
        for line in source.headlines(found):
            print(line, file=sys.stderr)
