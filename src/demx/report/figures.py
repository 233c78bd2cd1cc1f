"""Figures of a run as SVG text. The only place that draws."""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

from demx.evaluate.evaluation import batched_energies
from demx.types import Target

BLUE, ORANGE, GREY = "#3b6fb6", "#d9822b", "#8a8f98"
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "font.size": 10,
}


def _svg(figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.S)


def samples_over_contours(target: Target, x: np.ndarray) -> str | None:
    """Samples of a two-dimensional target over the contours of its log-density."""
    if target.space.shape != (2,):
        return None
    reach = 1.1 * max(1e-9, float(np.quantile(np.abs(x), 0.999)))
    if hasattr(target, "modes"):
        reach = max(reach, 1.15 * float(np.abs(target.modes).max()))
    side = np.linspace(-reach, reach, 200)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2).astype(np.float32)
    log_density = -batched_energies(target, grid).reshape(200, 200)
    top = np.nanmax(log_density)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 6))
        levels = top - np.array([30, 20, 12, 8, 5, 3, 1.5, 0.5])
        axes.contour(side, side, log_density, levels=levels, cmap="viridis", linewidths=0.7)
        axes.scatter(*x.T, s=3, color=ORANGE, alpha=0.5, linewidths=0, rasterized=True)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes.set(xlabel="$x_1$", ylabel="$x_2$")
        return _svg(figure)


def _shared_bins(sets: Sequence[np.ndarray], count: int = 60) -> np.ndarray:
    """Bins over the central 99.8 % of all sets: outliers are counted in the text, not drawn."""
    low = min(np.quantile(s, 0.001) for s in sets)
    high = max(np.quantile(s, 0.999) for s in sets)
    return np.linspace(low, max(high, low + 1e-6), count)


def histogram(name: str, x: np.ndarray, reference: np.ndarray | None) -> str:
    """Distribution of a number over the samples, beside the reference."""
    sets = [x] if reference is None else [x, reference]
    bins = _shared_bins(sets)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.2))
        if reference is not None:
            axes.hist(reference, bins, density=True, color=GREY, alpha=0.45, label="reference")
        axes.hist(x, bins, density=True, histtype="step", color=ORANGE, lw=1.6, label="samples")
        axes.set(xlabel=name, ylabel="density")
        axes.legend()
        return _svg(figure)


def _curve(name: str, calls: list[int], values: list[float], floor: float | None) -> str:
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(3.6, 2.8))
        axis.plot(calls, values, "o-" if len(calls) < 50 else "-", ms=3, color=BLUE)
        if floor is not None:
            axis.axhline(floor, color=GREY, ls="--", lw=1)
        low, high = min(values), float(np.quantile(values, 0.9))
        if max(values) - low > 10 * (high - low) > 0:
            # the first looks can be astronomically high: they are left out, and it is said
            axis.set_ylim(low - 0.1 * (high - low), high + 0.3 * (high - low))
            axis.set_title(f"highest, not shown: {max(values):.3g}", fontsize="small", color=GREY)
        axis.xaxis.set_major_formatter(EngFormatter())
        axis.set(xlabel="energy calls", ylabel=name)
        return _svg(figure)


def training_curves(history: list[dict[str, Any]], floor: float | None) -> str:
    """Loss, and what the periodic looks saw, against energy calls: a row of figures."""
    looks = [line for line in history if "evaluation" in line]
    names = list(dict.fromkeys(name for line in looks for name in line["evaluation"]))
    curves = []
    for name in ("loss", "ess", "acceptance"):
        points = [(line["energy_calls"], line[name]) for line in history if name in line]
        # of a trained method its loss says it; a look at chains is what they have instead
        if points and not (curves and name != "loss"):
            curves.append((name, points))
    for name in names:
        seen = [line for line in looks if name in line["evaluation"]]
        curves.append((name, [(s["energy_calls"], s["evaluation"][name]) for s in seen]))
    drawn = [
        _curve(name, *map(list, zip(*points, strict=True)), floor if name == "w2" else None)
        for name, points in curves
    ]
    return f'<div class="row">{"".join(drawn)}</div>'


def growth(lines: dict[str, dict[str, Any]]) -> str:
    """Seconds against size, both logarithmic, one line a size that was varied."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.2))
        for label, line in lines.items():
            label = f"{label}: exponent {line['exponent']:.2f}"
            axes.loglog(line["sizes"], line["seconds"], "o-", markersize=4, label=label)
        axes.set_xlabel("size")
        axes.set_ylabel("seconds")
        axes.legend(fontsize=8)
        return _svg(figure)
