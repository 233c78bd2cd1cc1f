"""The command `demx bench`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from demx.commands.options import optional
from demx.errors import UserError


def bench(
    what: Annotated[Literal["speed"], tyro.conf.Positional],
    /,
    targets: tuple[str, ...] = ("gmm40", "dw4", "lj13", "lj55"),
    repeats: int = 5,
    native: Annotated[str | None, optional("PROGRAM")] = None,
    growth: bool = False,
    json: bool = False,
    plot: Annotated[str | None, optional("FILE")] = None,
) -> None:
    """Time the parts of demx here, against plain formulations of the same mathematics.

    Estimator, network, inner step and sampling, against vmap(value_and_grad) in JAX and, if torch
    is installed (pip install torch), eager PyTorch. Every measurement is a process of its own, and
    those that are compared take turns; nothing else should run. About ten minutes on two cores, of
    which PyTorch takes half, and 12 GB of memory with it. Ctrl-C shows what there is.

    Args:
        what: what is timed.
        targets: which of gmm40, dw4, lj13, lj55, with spaces or commas between.
        repeats: the median of so many is shown.
        native: a program that prints the native limit of an estimate, a line for each target:
            LJ-13 B=512 K=1024 threads=2 seconds=0.05
        growth: measure also how cost grows with K, batch, particles and dimension.
        json: print numbers as JSON.
        plot: SVG file for the growth, on logarithmic axes; implies --growth.
    """
    from demx.bench import speed
    from demx.report import speed as tables

    if repeats < 1:
        raise UserError(f"repeats: expected at least 1, got {repeats}")
    if plot is not None and (Path(plot).is_dir() or not Path(plot).parent.is_dir()):
        raise UserError(f"plot: expected a file in a directory that exists, got {plot}")
    named = tuple(name for words in targets for name in words.split(",") if name)
    found = speed.run(
        named, repeats, native, growth or plot is not None,
        lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    if json:
        import json as dumps

        print(dumps.dumps(found, indent=2))
    else:
        tables.show(found)
    if plot is not None and found.get("growth"):
        from demx.report import figures

        Path(plot).write_text(figures.growth(found["growth"]))
    if found.get("stopped"):
        sys.exit(130)
