"""report.html: one file, nothing loaded from anywhere, that shows a run."""

import html
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
    about = fitted.config
    return (
        f"demx {demx.__version__}: demx fit {about['target']} --method {about['method']} "
        f"--seed {about['seed']}, with the configuration above; demx report."
    )
