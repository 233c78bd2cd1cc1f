"""How the help speaks of options: a default in words where Python has None, text that flows."""

import inspect
import re
import shutil
import textwrap
from collections.abc import Callable
from typing import Annotated, Any

import tyro

from demx.errors import UserError

Settings = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")
]


def optional(metavar: str, default: str = "", *aliases: str) -> Any:
    """An option that may be left out; what happens then, if a word says more than nothing."""
    hint = f"(default: {default})" if default else ""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, aliases=aliases)


def flowing(docstring: str) -> str:
    """The docstring with the lines of each argument joined: the help breaks them anew."""
    return re.sub(r"\n {8,}", " ", inspect.cleandoc(docstring))


def description(command: Callable) -> str:
    """What stands before the arguments in a docstring, as wide as the terminal."""
    said = inspect.cleandoc(command.__doc__).split("\n\nArgs:")[0]
    columns = max(40, shutil.get_terminal_size().columns)
    return "\n\n".join(textwrap.fill(part, columns) for part in said.split("\n\n"))


def correction(correct: str, steps: int | None) -> dict[str, Any]:
    """--correct and --correct-steps as `sample` and `evaluate` take them."""
    if steps is not None and correct not in ("mala", "hmc"):
        raise UserError("--correct-steps: only with --correct mala or --correct hmc")
    found = {} if steps is None else {"correct_steps": steps}
    return found | {"correct": None if correct == "none" else correct}
