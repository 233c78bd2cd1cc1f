"""What commands ask about the space of an energy function, and how they show its file."""

import sys
from typing import Annotated, Any, Literal

from demx.commands.options import optional
from demx.errors import UserError

Dim = Annotated[int | None, optional("INT")]
Shape = Annotated[str | None, optional("N,DIM")]
Symmetry = Literal["none", "particles"]


def space_of(dim: int | None, shape: str | None, symmetry: Symmetry) -> dict[str, Any]:
    """--dim, --shape and --symmetry as arguments `dim` or `particles` of `demx.fit`.

    (Particles of several species: a target that is made in Python.)
    """
    if shape is None:
        if symmetry == "particles":
            raise UserError("--symmetry particles: needs --shape n,dimension, such as 13,3")
        return {} if dim is None else {"dim": dim}
    if dim is not None:
        raise UserError("expected one of --dim and --shape, got both")
    try:
        sizes = tuple(int(part) for part in shape.split(","))
    except ValueError as error:
        raise UserError(f"--shape: expected whole numbers such as 13,3, got {shape!r}") from error
    if symmetry == "none" and len(sizes) == 1:
        return {"dim": sizes[0]}
    if symmetry == "none" or len(sizes) != 2:
        raise UserError(
            f"--shape {shape}: two numbers are n particles in so many dimensions, with --symmetry "
            "particles; an energy without their symmetry takes one flat vector, --dim"
        )
    return {"particles": sizes}


def options(
    dim: int | None, shape: str | None, symmetry: Symmetry, scale: float | None
) -> list[str]:
    """The same as arguments of another `demx` command."""
    space_of(dim, shape, symmetry)
    given = {"--dim": dim, "--shape": shape, "--scale": scale}
    told = [text for name, value in given.items() if value is not None for text in (name, value)]
    return [*map(str, told), *(["--symmetry", symmetry] if symmetry != "none" else [])]


def introduce(target: str) -> None:
    """First lines of the docstrings in FILE.py:NAME, for a user to see that it is the right one."""
    from demx import source

    found = source.parse(target)
    if found is not None and found.path.exists():
        for line in source.headlines(found):
            print(line, file=sys.stderr)
