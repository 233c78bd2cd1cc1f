"""Evaluations and registries as tables for a terminal, and as JSON."""

import inspect
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demx import config, registry
from demx.api import Fitted
from demx.assessment import Assessment
from demx.display import number, with_error
from demx.evaluate.evaluation import Evaluation
from demx.evaluate.reference import Reference
from demx.evaluate.verdict import word
from demx.methods import METHODS
from demx.targets import TARGETS

# the paper's iDEM (tables 2 and 5), where the definition is the same. Its ESS, NLL and log Z are
# of an OT-CFM flow; its total variation of particles is over distances
PAPER = {
    "gmm40": {"w2": 7.42, "tv": 0.82, "nll": 6.96, "ess": 0.734, "log_z_is": -0.340},
    "dw4": {"w2": 2.13, "distance_tv": 0.10, "nll": 7.17, "ess": 0.825, "log_z_is": 29.567},
    "lj13": {"w2": 4.26, "distance_tv": 0.04, "nll": 17.68, "ess": 0.231, "log_z_is": 49.97},
    "lj55": {"w2": 16.128, "distance_tv": 0.09, "nll": 125.86, "ess": 0.106, "log_z_is": 273.2},
}


def _finite(value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


class About(NamedTuple):
    """What an assessment is of: a target and who sampled it, and, of a run, what it has cost."""

    target: str
    sampler: str
    energy_calls: int = 0
    watching_calls: int = 0
    trained: str = ""

    @classmethod
    def of_run(cls, fitted: Fitted) -> "About":
        p, total = fitted.progress, fitted.method.outer_steps
        return cls(
            fitted.config["target"],
            fitted.config["method"],
            p.energy_calls,
            p.evaluation_calls,
            f"trained {p.step} of {total} outer loops in {p.seconds:.0f} s",
        )


def as_json(about: About, found: Assessment) -> str:
    def listed(evaluation: Evaluation) -> dict:
        return {
            # JSON knows no infinity: what is not finite is null
            name: {k: v if _finite(v) else None for k, v in metric._asdict().items()}
            | {"verdict": word(name, metric)}
            for name, metric in evaluation.metrics.items()
        }

    content = {
        "target": about.target,
        "method": about.sampler,
        "n": found.samples.n,
        "repeats": found.samples.repeats,
        "bad_samples": found.samples.bad,
        "energy_calls": about.energy_calls,
        "evaluation_energy_calls": found.samples.energy_calls,
        "density": found.density,
        "metrics": listed(found.samples),
        "verdict": found.verdict,
    }
    if found.mcmc is not None:
        content["mcmc"] = {"energy_calls": found.mcmc_calls, "metrics": listed(found.mcmc)}
    return json.dumps(content, indent=2)


def rows(about: About, found: Assessment) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of metrics, for a terminal or a page."""
    published = PAPER.get(about.target, {})
    header = ["metric", "n", "value", "floor", "verdict", *(["paper"] if published else [])]
    if found.mcmc is not None:
        header.insert(4, "mcmc")
    cells = []
    for name, metric in found.metrics.items():
        line = [
            name,
            str(metric.n),
            with_error(metric.value, metric.standard_error),
            with_error(metric.floor, metric.floor_standard_error),
            word(name, metric),
            *([number(published.get(name))] if published else []),
        ]
        if found.mcmc is not None:
            other = found.mcmc.metrics.get(name)
            line.insert(4, with_error(other.value, other.standard_error) if other else "")
        cells.append(line)
    return header, cells


def show(about: About, found: Assessment) -> None:
    # written to a file or a pipe, nothing need be cut at 80 columns
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    title = f"{about.sampler} on {about.target}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    header, cells = rows(about, found)
    for column in header:
        justify = "left" if column in ("metric", "verdict") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for line in cells:
        table.add_row(*map(escape, line))
    console.print(table)
    console.print("floor: the same between two reference sets; of a mean: the true value.")
    if found.mcmc is not None:
        console.print(f"mcmc: tuned parallel tempering, {found.mcmc_calls:,} energy calls.")
    if about.target in PAPER:
        console.print("paper: its iDEM.")
    if found.density:
        console.print(f"ess, psis_k, log_z and nll: of {found.density}.")
    console.print()
    for sentence in found.verdict:
        console.print(escape(sentence))
    if about.trained:
        console.print(f"\n{about.trained}")
    console.print(
        f"energy calls: {about.energy_calls:,} training, {about.watching_calls:,} watching it, "
        f"{found.samples.energy_calls:,} here"
    )


def show_reference(name: str, made: Reference, path: Path | None) -> None:
    """What vouches for the two sets, and the floors they give."""
    console = Console(soft_wrap=True)
    table = Table(title=f"reference of {name}", title_justify="left", box=None, pad_edge=False)
    for column in ("", "validation", "test"):
        table.add_column(column, justify="right" if column else "left")
    sets = [made.provenance["sets"][which] for which in ("validation", "test")]
    for key in sets[0]:
        if isinstance(sets[0][key], int | float | str):
            table.add_row(
                key, *(s[key] if isinstance(s[key], str) else f"{s[key]:.5g}" for s in sets)
            )
    for check in sets[0]["passes"]:
        table.add_row(check, *("met" if s["passes"][check] else "NOT MET" for s in sets))
    console.print(table)
    if (start := made.provenance.get("start")) is not None:
        console.print(f"starts: {start['compact']}, and {start['dispersed']}")
    for n, floors in made.provenance.get("floors", {}).items():
        text = ", ".join(f"{metric} {with_error(*value)}" for metric, value in floors.items())
        console.print(f"floors at n = {n}: {text}")
    console.print(f"{path or 'not kept'}: 2 sets of {len(made.test)} samples")


def show_registries() -> None:
    console = Console()
    table = Table(title="Targets", title_justify="left", show_header=False, box=None)
    for name, entry in TARGETS.items():
        factory = registry.load(entry)
        settings = _settings(factory)
        more = f"\n[dim]target: {escape(settings)}[/dim]" if settings else ""
        table.add_row(f"[bold]{name}[/bold]", escape(_first_line(factory)) + more)
    console.print(table)
    console.print()
    _show_methods(console)
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


def _show_methods(console: Console) -> None:
    """What each method is, then what is true of it: the paper's tables of methods, as a table."""
    table = Table(title="Methods", title_justify="left", show_header=False, box=None)
    for name, entry in METHODS.items():
        more = ""
        if entry.settings is not None:
            settings = escape(_settings(registry.load(entry.settings)))
            more = f"\n[dim]sampler: {settings}[/dim]"
        about = escape(_first_line(registry.load(entry.factory))) + more
        table.add_row(f"[bold]{name}[/bold]", about)
    console.print(table)
    console.print()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    columns = {
        "gradient": "∇E", "trains": "tunes", "weights": "gives\nw", "log_z": "\nlog Z",
        "log_prob": "\nlog q", "mcmc_free": "no\nMCMC", "off_policy": "off-\npolicy",
        "gradient_time": "time:\ngrad.", "proposal_time": "\nprop.", "sampling_time": "\ndraw",
        "memory": "memory",
    }  # fmt: skip
    for column in ("", *columns.values()):
        table.add_column(column)
    for name, entry in METHODS.items():
        values = (getattr(entry, column) for column in columns)
        cells = [{True: "yes", False: "-"}.get(v, v) for v in values]
        table.add_row(f"[bold]{name}[/bold]", *cells)
    console.print(table)
    for line in (
        "∇E: goes by it (all ask for it, with every energy). tunes: learns or adapts",
        "before it samples. w: gives weights, then log Z, and its density q. no MCMC: no",
        "chain that leaves p invariant. Orders of time and memory as in the paper's",
        "tables 1 and 6, for L steps in d dimensions.\n",
    ):
        console.print(line)


def _first_line(factory) -> str:
    return (inspect.getdoc(factory) or "").splitlines()[0]


def _settings(factory) -> str:
    items = registry.defaults(factory).items()
    return ", ".join(
        name if default is inspect.Parameter.empty else f"{name}={default}"
        for name, default in items
    )
