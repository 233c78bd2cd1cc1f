"""report.html: one file, nothing loaded from anywhere, that shows a run."""

import html
import json
import shlex
from pathlib import Path

import demx
from demx import api, config
from demx.report import document, figures, sections
from demx.report.sections import Coordinate, Shown
from demx.store import write_atomic


def write(run: Path, n: int = 1000, coordinate: Coordinate | None = None) -> Path:
    """Sample, evaluate, draw, and write run/report.html; returns its path."""
    return write_fitted(api.load(run), run / "report.html", n, coordinate)


def write_fitted(
    fitted: api.Fitted, path: Path, n: int = 1000, coordinate: Coordinate | None = None
) -> Path:
    """The page of a sampler; coordinate: what the free energy is shown along, by name or a
    function of one configuration."""
    sections.named(coordinate, fitted.target)  # refused before anything is drawn
    found = fitted.evaluate(n)
    count = 5000 if len(fitted.target.space.shape) == 1 else 2000
    shown = Shown.of(fitted, found, count)
    write_atomic(path, _page(shown, coordinate).encode())
    return path


def _page(shown: Shown, coordinate: Coordinate | None) -> str:
    fitted, about = shown.fitted, shown.fitted.config
    title = f"{about['method']} on {about['target']}"
    settings = f"<pre>{html.escape(config.dumps(about))}</pre>"
    if len(shown.even.x) < 2:
        words = f"{shown.bad} of {shown.bad + len(shown.even.x)} samples are not finite: "
        parts = [document.paragraph(words + "this sampler is broken.", "verdict"), settings]
        return document.document(title, parts)
    verdict = "".join(map(document.paragraph, shown.found.verdict))
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<div class="verdict">{verdict}</div>',
        document.paragraph(_costs(shown)),
        sections.samples(shown),
        '<div class="pairs">',
        sections.energies(shown),
        sections.distances(shown),
        sections.weights(shown),
        sections.free_energy(shown, coordinate),
        sections.modes(shown),
        "</div>",
        sections.training(shown),
        sections.judged(shown),
        document.section("Made by", document.folded("Configuration", settings)),
        f"<footer>{document.paragraph(_made_by(fitted))}</footer>",
    ]
    return document.document(title, parts)


def _costs(shown: Shown) -> str:
    fitted, p = shown.fitted, shown.fitted.progress
    plane = figures.GRID**2 if fitted.target.space.shape == (2,) else 0
    return (
        f"{p.step} of {fitted.method.outer_steps} outer loops in {p.seconds:.0f} s. Energy calls: "
        f"{p.energy_calls:,} for training, {p.evaluation_calls:,} for watching it, "
        f"{shown.found.samples.energy_calls:,} for the metrics, "
        f"{shown.energy_calls + plane:,} for the figures."
    )


def _made_by(fitted: api.Fitted) -> str:
    how = command(fitted) or "demx.fit, in Python, of an energy that has no file of its own"
    return f"demx {demx.__version__}: {how}, with the configuration above; demx report."


def command(fitted: api.Fitted) -> str:
    """The `demx fit` of a run, but for settings that are not the target's; '' if there is none."""
    about, p = fitted.config, fitted.progress
    if "source" not in about and "fingerprint" in about:  # an object in Python
        return ""
    name = about["target"]
    if "source" in about:
        name = f"{Path(about['source'].rpartition(':')[0]).name}:{name.rpartition(':')[2]}"
    words = ["demx", "fit", name, "--method", about["method"], "--seed", str(about["seed"])]
    joined = lambda numbers: ",".join(map(str, numbers))  # noqa: E731
    if "particles" in about:
        words += ["--shape", joined(about["particles"]), "--symmetry", "particles"]
    if "species" in about:
        words += ["--species", joined(about["species"])]
    for option in ("dim", "scale"):
        if option in about:
            words += [f"--{option}", str(about[option])]
    for setting, value in about.get("target_settings", {}).items():
        words += ["--set", f"target.{setting}={json.dumps(value)}"]
    if 0 < p.step < fitted.method.outer_steps:
        words += ["--budget", f"{max(1, round(p.seconds))}s"]
    return shlex.join(words)
