"""Figures: functions that draw on an Axes, and what makes SVG text of them. The only place that
draws."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from demx.evaluate.evaluation import batched_energies
from demx.evaluate.profile import Profile
from demx.report.document import COLOURS, SIZES
from demx.targets.black_box import BlackBox
from demx.types import Target

BLUE, ORANGE, GREY = "#4a86d8", "#e08126", "#8a8f98"
# stands for the colour of the text around the figure, whatever that is: see `svg`
INK = "#0a0b0c"
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "demx",
    "font.size": 10,
}
GRID = 200  # points to a side of the contours


def svg(draw: Callable[[Axes], Any], width: float = 5.2, height: float = 2.9) -> str:
    """What `draw` puts on an Axes, as SVG that takes the colour of the text around it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        draw(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", dpi=200, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.S)
    return drawn.replace(INK, "currentColor")


def new_axes(width: float = 6.0, height: float = 3.2, projection: str | None = None) -> Axes:
    """An Axes of a figure of its own, to be shown by whatever shows figures."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(width, height))
    return figure.add_subplot(projection=projection)


def _ink(axes: Axes) -> Any:
    return axes.xaxis.label.get_color()


def contour_calls(target: Target) -> int:
    """Energy calls that the contours in a plane take; 0: there are none.

    A black box has none: of a slow one they could take hours, for lines behind the samples.
    """
    drawn = target.space.shape == (2,) and not isinstance(target, BlackBox)
    return GRID**2 if drawn else 0


def plane(axes: Axes, target: Target, x: np.ndarray) -> Axes:
    """Samples (n, 2), over the contours of the log-density where these are drawn."""
    modes = np.asarray(getattr(target, "modes", np.empty((0, 2))), float)
    across, up = (span(x[:, i], modes[:, i]) for i in (0, 1))
    if contour_calls(target):
        sides = [np.linspace(*ends, GRID) for ends in (across, up)]
        grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2).astype(np.float32)
        log_density = -batched_energies(target, grid).reshape(GRID, GRID)
        levels = np.nanmax(log_density) - np.array([30, 20, 12, 8, 5, 3, 1.5, 0.5])
        shades = [matplotlib.colors.to_rgba(BLUE, 0.25 + 0.75 * i / 7) for i in range(8)]
        axes.contour(*sides, log_density, levels=levels, colors=shades, linewidths=0.7)
    axes.scatter(*x.T, s=3, color=ORANGE, alpha=0.5, linewidths=0, rasterized=True)
    axes.set(xlim=across, ylim=up, xlabel="$x_0$", ylabel="$x_1$")
    if 1 / 3 <= (up[1] - up[0]) / (across[1] - across[0]) <= 3:
        axes.set_aspect("equal")  # of a plane longer than that a strip would be left
    return axes


def span(values: np.ndarray, known: np.ndarray) -> tuple[float, float]:
    """Where all but a thousandth of the values are, and all of the known places, with a margin."""
    ends = np.concatenate([np.quantile(values, [0.0005, 0.9995]), known])
    low, high = float(ends.min()), float(ends.max())
    margin = 0.075 * (high - low) or 1e-3 * max(1.0, abs(low))  # one value has a range too
    return low - margin, high + margin


def scatter(axes: Axes, columns: dict[str, np.ndarray]) -> Axes:
    """The first two of named columns (n,) against each other, or one against its number."""
    (across, first), *more = columns.items()
    up, second = more[0] if more else (across, first)
    if not more:
        across, first = "sample", np.arange(len(second))
    axes.scatter(first, second, s=4, color=ORANGE, alpha=0.5, linewidths=0, rasterized=True)
    axes.set(xlabel=across, ylabel=up)
    return axes


def particles(axes: Axes, x: np.ndarray, kinds: Sequence[int] = ()) -> Axes:
    """One configuration (particles, dim); kinds: their species, 0, 1, …"""
    kinds = np.asarray(kinds or (0,) * len(x)) % len(COLOURS)
    colours, areas = np.array(COLOURS)[kinds] / 255, 220 * np.array(SIZES)[kinds] ** 2
    axes.scatter(*x.T, s=areas, c=colours, edgecolors=GREY)
    axes.set_aspect("equal")
    return axes


def central(values: np.ndarray) -> tuple[float, float]:
    """The quartiles and three times their distance beyond (Tukey's outer fences), as far as there
    are values: what a fifth of the samples do, however far out, leaves it as it is.

    Of a normal it is 4.7σ, of an exponential law it leaves out 1 %.
    """
    low, high = np.quantile(values, [0.25, 0.75])
    more = 3 * (high - low) or np.inf
    return max(values.min(), low - more), min(values.max(), high + more)


def _shared_bins(sets: Sequence[np.ndarray], count: int = 60) -> np.ndarray:
    lows, highs = zip(*map(central, sets), strict=True)
    low, high = min(lows), max(highs)
    # one value, and of single precision at that, is a range too
    return np.linspace(low, max(high, low + 1e-6 * max(1.0, abs(low))), count)


def histogram(axes: Axes, name: str, x: np.ndarray, reference: np.ndarray | None = None) -> Axes:
    """Distribution of a number over the samples, beside the reference; those beyond the axis are
    counted above it, and the area below the curve is the share of the others."""
    x = np.asarray(x, float)
    sets = [x] if reference is None else [x, np.asarray(reference, float)]
    bins = _shared_bins(sets)
    share = [np.full(len(s), 1 / (len(s) * (bins[1] - bins[0]))) for s in sets]
    if reference is not None:
        axes.hist(sets[1], bins, weights=share[1], color=GREY, alpha=0.45, label="reference")
    axes.hist(x, bins, weights=share[0], histtype="step", color=ORANGE, lw=1.6, label="samples")
    axes.set(xlabel=name, ylabel="density")
    beyond = int(((x < bins[0]) | (x > bins[-1])).sum())
    if beyond:
        axes.set_title(f"{beyond} of {len(x)} beyond this axis", fontsize="small")
    if reference is not None:
        axes.legend()
    return axes


def weights(axes: Axes, log_weight: np.ndarray) -> Axes:
    """log w - log mean w, (n,): of a perfect sampler all are 0. Weights of 0 are not drawn."""
    finite = np.asarray(log_weight, float)[np.isfinite(log_weight)]
    mean = finite.max() + np.log(np.exp(finite - finite.max()).sum() / len(log_weight))
    relative = finite - mean
    bins = np.linspace(np.quantile(relative, 0.005), relative.max() + 1e-6, 50)
    axes.hist(relative, bins, color=ORANGE, alpha=0.75)
    axes.axvline(0, color=_ink(axes), lw=1, ls="--")
    axes.set(xlabel="log weight, less that of the mean weight", ylabel="samples", yscale="log")
    return axes


def free_energy(axes: Axes, name: str, found: Profile, reference: Profile | None = None) -> Axes:
    """F along a coordinate with two standard errors; the lowest point of the truth is 0."""
    zero = float(np.nanmin((reference or found).free_energy))
    for line, colour, label in ((reference, GREY, "reference"), (found, ORANGE, "samples")):
        if line is None:
            continue
        low = line.lowered(zero)
        error = 2 * low.standard_error  # where there is none, there is no band
        axes.fill_between(
            low.centres, low.free_energy - error, low.free_energy + error, color=colour,
            alpha=0.25, lw=0,
        )  # fmt: skip
        axes.plot(low.centres, low.free_energy, color=colour, lw=1.6, label=label)
    axes.set(xlabel=name, ylabel="free energy / kT")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    if reference is not None:
        axes.legend()
    return axes


def modes(axes: Axes, share: np.ndarray, error: np.ndarray, true: np.ndarray) -> Axes:
    """Share of the samples at every mode (M,) with two standard errors, beside the true one."""
    order = np.arange(len(share))
    axes.bar(order, true, width=0.8, color=GREY, alpha=0.45, label="true")
    axes.errorbar(order, share, 2 * error, fmt="o", ms=3, lw=1, color=ORANGE, label="samples")
    axes.set(xlabel="mode", ylabel="share", ylim=(0, None))
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.legend(ncols=2, loc="upper right")
    return axes


def curve(
    axes: Axes, name: str, calls: Sequence[int], values: Sequence[float], floor: float | None = None
) -> Axes:
    """A number while training, against energy calls."""
    axes.plot(calls, values, "o-" if len(calls) < 50 else "-", ms=3, color=BLUE)
    if floor is not None:
        axes.axhline(floor, color=_ink(axes), ls="--", lw=1)
    low, high = min(values), float(np.quantile(values, 0.9))
    if max(values) - low > 10 * (high - low) > 0:
        # the first looks can be astronomically high: they are left out, and it is said
        axes.set_ylim(low - 0.1 * (high - low), high + 0.3 * (high - low))
        axes.set_title(f"highest, not shown: {max(values):.3g}", fontsize="small")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set(xlabel="energy calls", ylabel=name)
    return axes


def training_series(history: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """What to draw of a run's history, by name: the loss, or what a method has instead, and what
    the periodic looks saw."""
    points: dict[str, list[tuple[int, float]]] = {}
    for name in ("loss", "ess", "acceptance"):
        found = [(line["energy_calls"], line[name]) for line in history
                 if line.get(name) is not None]  # fmt: skip
        # of a trained method its loss says it; a look at chains is what they have instead
        if found and not (points and name != "loss"):
            points[name] = found
    for line in history:
        for name, value in line.get("evaluation", {}).items():
            if value is not None:
                points.setdefault(name, []).append((line["energy_calls"], value))
    return {name: tuple(map(list, zip(*pairs, strict=True))) for name, pairs in points.items()}


def growth(lines: dict[str, dict[str, Any]]) -> str:
    """Seconds against size, both logarithmic, one line a size that was varied."""

    def draw(axes: Axes) -> None:
        for label, line in lines.items():
            if line["exponent"] is not None:
                label = f"{label}: exponent {line['exponent']:.2f}"
            axes.loglog(line["sizes"], line["seconds"], "o-", markersize=4, label=label)
        axes.set(xlabel="size", ylabel="seconds")
        axes.legend(fontsize=8)

    return svg(draw, 6.4, 4.2)
