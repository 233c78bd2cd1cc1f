"""report.html: one file, nothing loaded from anywhere, that shows a run."""

import html
from importlib import resources
from pathlib import Path

import numpy as np

import demx
from demx import api, config
from demx.assessment import Assessment
from demx.evaluate import metrics
from demx.evaluate.evaluation import (
    batched_energies,
    finite_rows,
)
from demx.report import figures, tables
from demx.space import MeanFree
from demx.store import Store, write_atomic

CSS = (resources.files("demx.report") / "report.css").read_text()


def write(run: Path, n: int = 1000) -> Path:
    """Sample, evaluate, draw, and write run/report.html; returns its path."""
    store = Store(run)
    fitted = api.load(run)
    found = fitted.evaluate(n)
    count = 5000 if len(fitted.target.space.shape) == 1 else 2000
    samples = np.asarray(fitted.sample(count, seed=2).x)
    path = run / "report.html"
    write_atomic(path, _page(fitted, found, samples, store).encode())
    return path


def _page(fitted: api.Fitted, found: Assessment, x: np.ndarray, store: Store) -> str:
    target, about = fitted.target, fitted.config
    sets = fitted.reference()
    reference = None if sets is None else sets.test
    energies = batched_energies(target, x)
    good = finite_rows(x, energies)
    drawn, x, finite = len(x), x[good], energies[good]
    if len(x) == 0:
        return _broken(fitted, drawn)
    of_reference = None if reference is None else batched_energies(target, reference)
    title = f"{about['method']} on {about['target']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(" ".join(found.verdict))}</p>',
        f"<p>{_costs(fitted, found)}</p>",
        "<h2>Metrics</h2>",
        "<p>The floor is the same metric between two independent reference sets: what perfect "
        "samples get (of a mean: the true value). At the floor: within two standard errors of it. "
        f"{html.escape(_definitions(found))}</p>",
        f'<div class="scroll">{_table(fitted, found)}</div>',
    ]
    plot = figures.samples_over_contours(target, x)
    if plot:
        parts.append(_figure("Samples", plot, f"{len(x)} samples over contours of the target."))
    parts.append(
        _figure(
            "Energies",
            figures.histogram("energy", finite, of_reference),
            f"{len(finite)} samples; {drawn - len(finite)} with an energy that is not "
            f"finite. Lowest {finite.min():.4g}, median {np.median(finite):.4g}, "
            f"highest {finite.max():.4g}.",
        )
    )
    if isinstance(target.space, MeanFree):
        pairs = metrics.distances(x).ravel()
        of_pairs = None if reference is None else metrics.distances(reference[: len(x)]).ravel()
        drawn = figures.histogram("interatomic distance", pairs, of_pairs)
        parts.append(_figure("Distances", drawn, f"All pairs of {len(x)} samples."))
    history = store.history()
    if history:
        floor = found.metrics["w2"].floor if "w2" in found.metrics else None
        curves = figures.training_curves(history, floor)
        parts.append(
            _figure("Training", curves, "Against energy calls; dashed: the floor, where known.")
        )
    parts += [
        f"<details><summary>Configuration</summary><pre>{html.escape(config.dumps(about))}</pre>"
        "</details>",
        f"<p>demx {demx.__version__}: demx fit {html.escape(about['target'])} "
        f"--method {html.escape(about['method'])} --seed {about['seed']}, with the configuration "
        "above; demx evaluate; demx report.</p>",
    ]
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>"
    )


def _broken(fitted: api.Fitted, drawn: int) -> str:
    """The page of a sampler that gives nothing to show."""
    return (
        f"<!doctype html><meta charset=utf-8><style>{CSS}</style>"
        f'<p class="verdict">None of {drawn} samples is finite: this sampler is broken.</p>'
        f"<pre>{html.escape(config.dumps(fitted.config))}</pre>"
    )


def _figure(title: str, svg: str, caption: str) -> str:
    return f"<h2>{title}</h2><figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


DEFINITIONS = {
    "w2": "Wasserstein-2 distance between samples and reference",
    "w2_aligned": "the same after relabelling, rotating and reflecting each pair of clusters",
    "energy_w2": "Wasserstein-2 between energies",
    "energy_w1": "Wasserstein-1 between energies",
    "distance_w2": "Wasserstein-2 between interatomic distances",
    "distance_tv": "total variation between their histograms, 200 bins",
    "tv": "total variation between histograms of 200 by 200 bins",
    "modes_hit": "modes with a sample within 3σ",
    "mode_tv": "total variation between mode weights",
    "outside_share": "samples farther than 3σ from every mode",
    "ess": "effective share of the importance weights",
    "psis_k": "Pareto tail index of the weights, trusted below 0.7",
    "log_z_lower": "ELBO",
    "log_z_is": "log Z by importance sampling",
    "log_z_upper": "EUBO on reference samples",
    "nll": "mean of -log q on reference samples",
}


def _definitions(found: Assessment) -> str:
    known = [f"{name}: {DEFINITIONS[name]}" for name in found.metrics if name in DEFINITIONS]
    return "; ".join(known) + "."


def _costs(fitted: api.Fitted, found: Assessment) -> str:
    p = fitted.progress
    return (
        f"{p.step} of {fitted.method.outer_steps} outer loops in "
        f"{p.seconds:.0f} s. Energy calls: {p.energy_calls:,} for "
        f"training, {p.evaluation_calls:,} for watching it, "
        f"{found.samples.energy_calls:,} for the metrics."
    )


def _table(fitted: api.Fitted, found: Assessment) -> str:
    header, cells = tables.rows(tables.About.of_run(fitted), found)
    head = "".join(f"<th>{html.escape(h)}</th>" for h in header)
    body = (
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>" for line in cells
    )
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
