"""Evaluations and registries as tables for a terminal, and as JSON."""

import inspect
import json
import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demx import config, registry
from demx.api import Fitted
from demx.evaluate.evaluation import Evaluation, Metric
from demx.methods import METHODS
from demx.targets import TARGETS

# the paper's iDEM (tables 2 and 5), where the definition is the same
PAPER = {"gmm40": {"w2": 7.42}, "dw4": {"w2": 2.13}, "lj13": {"w2": 4.26}, "lj55": {"w2": 16.128}}


def number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def with_error(value: float | None, error: float | None) -> str:
    """4.53 ± 0.08: the value to the digit that its error can tell."""
    if value is None:
        return ""
    if not error:
        return number(value)
    leading = math.floor(math.log10(error))
    # one digit of the error, two where the first is a 1
    digits = max(0, (1 if error < 2 * 10**leading else 0) - leading)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def verdict(metric: Metric, name: str) -> str:
    if metric.floor is None:
        return ""
    if name == "modes_hit":
        return "all" if metric.value == metric.floor else "modes missing"
    if metric.two_sided:
        return "as reference" if metric.at_floor else "off"
    return "at the floor" if metric.at_floor else "above"


def as_json(fitted: Fitted, found: Evaluation) -> str:
    return json.dumps(
        {
            "target": fitted.config["target"],
            "method": fitted.config["method"],
            "n": found.n,
            "repeats": found.repeats,
            "bad_samples": found.bad,
            "energy_calls": fitted.progress.energy_calls,
            "evaluation_energy_calls": found.energy_calls,
            "metrics": {
                name: {**metric._asdict(), "verdict": verdict(metric, name)}
                for name, metric in found.metrics.items()
            },
        },
        indent=2,
    )


def show(fitted: Fitted, found: Evaluation) -> None:
    console, target = Console(soft_wrap=True), fitted.config["target"]
    title = f"{fitted.config['method']} on {target}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("metric", "n", "value", "floor", "", "paper"):
        justify = "left" if column in ("metric", "") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for name, metric in found.metrics.items():
        table.add_row(
            name,
            str(metric.n),
            with_error(metric.value, metric.standard_error),
            with_error(metric.floor, metric.floor_standard_error),
            verdict(metric, name),
            number(PAPER.get(target, {}).get(name)),
        )
    console.print(table)
    if any(metric.floor is not None for metric in found.metrics.values()):
        console.print("floor: the same between two reference sets; of a mean: the true value.")
        console.print("at the floor: within two standard errors. paper: its iDEM.")
    if not found.metrics:
        console.print("Too many samples are not finite: nothing can be said of the others.")
    elif all(metric.floor is None for metric in found.metrics.values()):
        console.print("This target has no exact samples: floors cannot be given yet.")
    p = fitted.progress
    console.print(
        f"trained {p.step} of {fitted.config['training']['outer_steps']} outer loops; "
        f"{found.bad} samples not finite\nenergy calls: {p.energy_calls:,} training, "
        f"{p.evaluation_calls:,} watching it, {found.energy_calls:,} here"
    )


def show_registries() -> None:
    console = Console()
    for title, entries in (("Targets", TARGETS), ("Methods", METHODS)):
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, entry in entries.items():
            factory = registry.load(entry)
            doc = (inspect.getdoc(factory) or "").splitlines()[0]
            settings = _settings(factory) if entries is TARGETS else ""
            more = f"\n[dim]target: {escape(settings)}[/dim]" if settings else ""
            table.add_row(f"[bold]{name}[/bold]", escape(doc) + more)
        console.print(table)
        console.print()
    console.print("Settings, changed by --set section.name=value; --set section.kind=KIND chooses")
    console.print(
        "a kind; --set 'estimator.wrap=[\"conditional\"]' wraps (conditional, richardson);"
    )
    console.print("a target's own are --set target.name=value. A preset may set others: see")
    console.print("config.toml in a run directory. Without a default: set by preset or --scale.")
    table = Table(box=None)
    for column in ("section", "kind", "settings and defaults"):
        table.add_column(column)
    for section, entries in config.KINDS.items():
        for kind, factory in entries.items():
            table.add_row(section, kind, _settings(factory))
    for section, factory in (config.SINGLE | config.OPTIONAL).items():
        table.add_row(section, "", _settings(factory))
    console.print(table)


def _settings(factory) -> str:
    items = registry.defaults(factory).items()
    return ", ".join(
        name if default is inspect.Parameter.empty else f"{name}={default}"
        for name, default in items
    )
