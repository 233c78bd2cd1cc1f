"""A comparison of methods: one table for a terminal, one page with figures."""

import html
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import demx
from demx.comparison import Row
from demx.correction import equal_weights
from demx.display import html_table, with_error
from demx.errors import UserError
from demx.evaluate import reference, verdict
from demx.evaluate.evaluation import batched_energies
from demx.pace import short, watched
from demx.report import document, figures
from demx.report.sections import DEFINITIONS
from demx.resolve import Opened, reference_key
from demx.samples import read
from demx.store import write_atomic


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and lines: metrics first, beside their floor, then what each method has cost."""
    good = [row for row in rows if not row.error]
    names = list(dict.fromkeys(name for row in good for name in row.evaluation["metrics"]))
    header = ["", "floor", *(row.method for row in rows)]
    lines = []
    for name in names:
        line, floor = [name], ""
        for row in rows:
            metric = row.evaluation.get("metrics", {}).get(name)
            text = with_error(metric["value"], metric["standard_error"]) if metric else ""
            if metric and metric["verdict"] in verdict.GOOD:
                text += " *"
            line.append(text)
            if metric and metric["floor"] is not None:
                floor = with_error(metric["floor"], metric["floor_standard_error"])
        lines.append([line[0], floor, *line[1:]])
    costs = {
        "energy calls, training": lambda row: f"{row.evaluation['energy_calls']:,}",
        "energy calls, evaluation": lambda row: f"{row.evaluation['evaluation_energy_calls']:,}",
        "bad samples": lambda row: str(row.evaluation["bad_samples"]),
        "seconds": lambda row: f"{row.seconds:.0f}",
        "peak GB": lambda row: f"{row.peak_gigabytes:.2f}",
    }
    for name, say in costs.items():
        lines.append([name, "", *("" if row.error else say(row) for row in rows)])
    return header, lines


def summary(rows: Sequence[Row]) -> str:
    """In one sentence: how many metrics each method has at the floor, and for how many calls."""
    told = []
    for row in rows:
        words = [m["verdict"] for m in row.evaluation.get("metrics", {}).values()]
        judged = [w for w in words if w in (*verdict.GOOD, *verdict.POOR)]
        if not row.error and judged:
            good = sum(w in verdict.GOOD for w in judged)
            calls = row.evaluation["energy_calls"] + row.evaluation["evaluation_energy_calls"]
            told.append((-good / len(judged), calls, row.method, f"{good} of {len(judged)}"))
    if not told:
        return "No metric here can tell good samples from bad ones: there is no reference."
    each = "; ".join(
        f"{method} {share}, {short(calls)} energy calls" for _, calls, method, share in sorted(told)
    )
    return f"Metrics that cannot tell the samples from perfect ones, best first: {each}."


NOTE = (
    "* at the floor, or as the reference: within two standard errors of what perfect samples get. "
    "Seconds are of the whole training process, compilation included."
)


def show(target: str, rows: Sequence[Row]) -> None:
    # written to a file or a pipe, nothing need be cut at 80 columns
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 240)
    table = Table(title=f"methods on {target}", title_justify="left", box=None, pad_edge=False)
    header, lines = cells(rows)
    for column in header:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for line in lines:
        table.add_row(*map(escape, line))
    console.print(table)
    console.print(NOTE)
    console.print(summary(rows), highlight=False)
    for row in rows:
        if row.error:
            console.print(escape(f"{row.method}: {row.error}"))


def write(
    target: str,
    opened: Opened,
    rows: Sequence[Row],
    path: Path,
    *,
    settings: Mapping[str, Any],
    given: Sequence[str] = (),
) -> Path:
    """One page: the table, energies of all methods, and what their samples look like.

    settings: of the target. given: the options of the command that say what the target is.
    """
    built = opened.target
    header, lines = cells(rows)
    meaning = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(DEFINITIONS[name])}</dd>"
        for name, *_ in lines
        if name in DEFINITIONS
    )
    parts = [
        f"<h1>Methods on {html.escape(target)}</h1>",
        *(
            f'<p class="verdict">{html.escape(row.method)} has no result: '
            f"{html.escape(row.error)}</p>"
            for row in rows
            if row.error
        ),
        f'<p class="verdict">{html.escape(summary(rows))}</p>',
        f'<div class="scroll wide">{html_table([header, *lines])}</div><p>{NOTE}</p>',
        document.folded("What these are", f"<dl>{meaning}</dl>"),
        "<h2>What each says of itself</h2>",
    ]
    for row in rows:
        if not row.error:
            words = " ".join(row.evaluation["verdict"])
            parts.append(f"<p><b>{html.escape(row.method)}</b>: {html.escape(words)}</p>")
    of_reference = None if built.space.shape == (2,) else _of_reference(opened, settings)
    parts.append('<div class="row">')
    for row in rows:
        if row.error or row.samples is None:
            continue
        name = row.method
        try:
            x = _evenly(row.samples)
        except UserError as error:  # a method without a figure is no reason to have no page
            parts.append(f"<p>{html.escape(f'{name}: no figure, {error}')}</p>")
            continue
        x = x[np.isfinite(x).reshape(len(x), -1).all(axis=1)]
        with watched(built, f"figure of {name}", len(x)):
            energies = batched_energies(built, x)
        x, energies = x[np.isfinite(energies)], energies[np.isfinite(energies)]
        if len(x) == 0:
            continue
        words = f"{name}: {len(x)} samples"
        if built.space.shape == (2,):
            plot = figures.svg(lambda axes, x=x: figures.plane(axes, built, x), 6, 6)
            words += "" if figures.contour_calls(built) else ", without contours"
        else:
            plot = figures.svg(
                lambda axes, e=energies: figures.histogram(axes, "energy", e, of_reference)
            )
        parts.append(document.figure(plot, words))
    methods = ",".join(row.method for row in rows)
    command = shlex.join(["demx", "compare", target, "--methods", methods, *given])
    parts.append(f"</div><p>demx {demx.__version__}: {html.escape(command)}</p>")
    page = document.document(f"methods on {target}", parts)
    write_atomic(path, page.encode())
    return path


def _evenly(path: Path) -> np.ndarray:
    """Samples of a file; weighted ones are resampled."""
    stored = read(path)
    if stored.log_weight is None:
        return stored.x
    return stored.x[equal_weights(stored.log_weight, len(stored.x), 0)]


def _of_reference(opened: Opened, settings: Mapping[str, Any]) -> np.ndarray | None:
    sets = reference.find(*reference_key(opened.head(settings)), opened.target)
    return None if sets is None else batched_energies(opened.target, sets.test[:2000])
