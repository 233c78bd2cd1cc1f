"""The sections of a report: plain words, then a figure, each from what is shown of a run."""

import html
from collections.abc import Callable

import numpy as np

from demx.display import html_table, with_error
from demx.errors import UserError
from demx.evaluate import metrics, observables, verdict
from demx.evaluate.profile import Profile, bins_over, profile
from demx.evaluate.summary import cells
from demx.report import document, figures, tables
from demx.report.shown import Shown
from demx.space import MeanFree
from demx.types import Target

Coordinate = str | Callable[[np.ndarray], float]
MOST_MODES = 200  # of which a table can be read


def samples(shown: Shown) -> str:
    """The plane, a cluster that turns, or the first two coordinates."""
    target, even = shown.fitted.target, shown.even
    if target.space.shape == (2,):
        drawn = figures.svg(lambda axes: figures.plane(axes, target, even.x), 6, 6)
        where = ", in unconstrained coordinates" if hasattr(target, "named") else ""
        over = " over contours of the target"
        if not figures.contour_calls(target):
            over = f", without contours, which would take {figures.GRID**2:,} energy calls"
        words = f"{len(even.x)} samples{over}{where}."
        return document.section("Samples", document.figure(drawn, words))
    if isinstance(target.space, MeanFree) and target.space.dim <= 3:
        words = (
            "Samples from the lowest energy to the highest: drag to rotate, and step through them "
            "with the slider. Lines join near neighbours."
        )
        moving = document.view(even.x, even.energy, *species(target))
        return document.section("Samples", document.paragraph(words), moving)
    columns = coordinates(target, even.x)
    drawn = figures.svg(lambda axes: figures.scatter(axes, columns), 5, 5)
    words = f"The first two of {len(columns)} coordinates, {len(even.x)} samples."
    return document.section("Samples", document.figure(drawn, words))


def species(target: Target) -> tuple[tuple[int, ...], list[str]]:
    """Of every particle, 0, 1, …, and what they are called; nothing if all particles are equal."""
    kinds = target.space.several
    if kinds is None:
        return (), []
    given = getattr(target, "symbols", [f"species {one}" for one in target.space.species])
    names = [given[kinds.index(kind)] for kind in range(max(kinds) + 1)]
    # atoms of one element can be of several species
    names = [f"{n} ({kind})" if names.count(n) > 1 else n for kind, n in enumerate(names)]
    return kinds, names


def coordinates(target: Target, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every coordinate of samples, (n,) each, by the name that the target has for it, or x_0, …"""
    if hasattr(target, "named"):
        return observables.entries(target.named(x))
    return {f"$x_{{{i}}}$": column for i, column in enumerate(x.reshape(len(x), -1).T)}


def energies(shown: Shown) -> str:
    energy, reference = shown.even.energy, shown.reference
    true = None if reference is None else reference.energy
    temperature = getattr(shown.fitted.target, "temperature", None)
    name = energy_axis(shown.fitted.target)
    drawn = figures.svg(lambda axes: figures.histogram(axes, name, energy, true))
    words = (
        f"{len(energy)} samples, from {energy.min():.4g} to {energy.max():.4g}; the median is "
        f"{np.median(energy):.4g}"
        + ("." if true is None else f", the reference's {np.median(true):.4g}.")
        + f" {shown.bad} of them are not finite." * bool(shown.bad)
    )
    if temperature is not None:
        trap = ", with the trap" if getattr(shown.fitted.target, "trap", 0.0) else ""
        words += f" In units of kT at {temperature:g} K{trap}."
    return document.section("Energies", document.figure(drawn, words))


def energy_axis(target: Target) -> str:
    """Of other targets than atoms an energy is a number, and a length is one of x."""
    return "energy" if getattr(target, "temperature", None) is None else "energy / kT"


def length_axis(name: str, target: Target) -> str:
    unit = getattr(target, "angstrom", None)  # of one unit of x
    return name + ("" if unit is None else " / Å" if unit == 1 else f" / {unit:g} Å")


def distances(shown: Shown) -> str:
    if not isinstance(shown.fitted.target.space, MeanFree):
        return ""
    pairs = metrics.distances(shown.even.x).ravel()
    true = None
    if shown.reference is not None:
        true = metrics.distances(shown.reference.x[: len(shown.even.x)]).ravel()
    name = length_axis("interparticle distance", shown.fitted.target)
    drawn = figures.svg(lambda axes: figures.histogram(axes, name, pairs, true))
    words = f"All pairs of {len(shown.even.x)} samples; the smallest is {pairs.min():.3g}."
    return document.section("Distances", document.figure(drawn, words))


def weights(shown: Shown) -> str:
    """The weights of the density that was judged, or else those the samples came with."""
    found = shown.found
    log_weight = shown.cloud.log_weight if found is None else found.log_weight
    if log_weight is None or not np.isfinite(log_weight).any():
        return ""
    drawn = figures.svg(lambda axes: figures.weights(axes, log_weight))
    told = ""
    if found is not None and "psis_k" in found.metrics:
        k, share = found.metrics["psis_k"], found.metrics["ess"]
        told = (
            f" k̂ = {with_error(k.value, k.standard_error)}: below 0.7 they can be trusted. "
            f"Effective share {with_error(share.value, share.standard_error)}."
        )
    zero = int(np.isneginf(log_weight).sum())
    words = (
        f"Importance weights exp(-E)/q of {len(log_weight)} samples. Of a perfect sampler all "
        f"would stand on the dashed line.{told}" + f" {zero} have the weight 0." * bool(zero)
    )
    return document.section("Weights", document.figure(drawn, words))


def modes(shown: Shown) -> str:
    """Shares by the weights of the samples, with the errors of their islands."""
    target, cloud = shown.fitted.target, shown.cloud
    if not all(hasattr(target, name) for name in ("modes", "log_weights")):
        return ""
    centres, true = np.asarray(target.modes), np.exp(np.asarray(target.log_weights, float))
    if len(centres) > MOST_MODES:
        return ""
    nearest = metrics.nearest_mode(cloud.x, centres)
    found = cells(nearest, len(centres), cloud.log_weight, cloud.island)
    share, error = found.share, found.errors_of(true)  # as perfect samples have them
    away = (share - true) / np.maximum(error, 1e-300)
    drawn = figures.svg(lambda axes: figures.modes(axes, share, error, true))
    rows = [["mode", "centre", "true share", "share", "standard errors away"]]
    for i in np.argsort(-np.abs(share - true if found.groups == 1 else away)):
        place = ", ".join(f"{v:.3g}" for v in centres[i][:3])
        dots = ", …" if centres.shape[1] > 3 else ""
        rows.append([
            str(i), f"({place}{dots})", f"{true[i]:.4f}", with_error(share[i], error[i]),
            "" if np.isnan(away[i]) else f"{away[i]:+.1f}",
        ])  # fmt: skip
    empty, far = int((found.reached == 0).sum()), int((np.abs(away) > 2).sum())
    weighted = "" if cloud.log_weight is None else ", by their weights,"
    words = f"Share of {len(cloud.x)} samples{weighted} nearest to each of {len(centres)} modes, "
    none = f"{empty} modes have no sample. " if empty else ""
    if found.groups == 1:
        words += f"without standard errors: all samples depend on each other. {none}"
    else:
        words += (
            f"with two standard errors. {none}{far} are more than two standard errors from the "
            f"truth; of perfect samples {0.05 * len(centres):.0f} would be."
        )
    table = document.folded("Every mode", f'<div class="scroll">{html_table(rows)}</div>')
    return document.section("Modes", document.figure(drawn, words), table)


def named(coordinate: Coordinate | None, target: Target) -> tuple[str, observables.Observable]:
    """A coordinate and its name with its unit; None: the radius of gyration, or the first
    coordinate, that with a name if there is one."""
    space, names = target.space, getattr(target, "named", None)
    own = observables.entry_names(space, names)
    if coordinate is None:
        usual = "radius_of_gyration" if isinstance(space, MeanFree) else "x0"
        coordinate = own[0] if own else usual
    if isinstance(coordinate, str):
        measure = observables.observable(coordinate, space, names)
        if coordinate in own:
            return coordinate, measure
        if coordinate == "energy":
            return energy_axis(target), measure
        if coordinate.startswith("dihedral"):
            return f"{coordinate} / °", measure
        return length_axis(coordinate.replace("_", " "), target), measure
    name = getattr(coordinate, "__name__", "coordinate").replace("<lambda>", "coordinate")
    return name.replace("_", " "), observables.of_function(coordinate)


def profiles(shown: Shown, coordinate: Coordinate | None) -> tuple[str, Profile, Profile | None]:
    """Name of the coordinate, free energy along it of the samples, and of the reference."""
    name, measure = named(coordinate, shown.fitted.target)
    clouds = [c for c in (shown.cloud, shown.reference) if c is not None]
    values = [measure(c.x, c.energy) for c in clouds]
    if not all(np.isfinite(v).any() for v in values):
        raise UserError(f"free energy: {name} is not finite, of any sample or of the reference")
    try:
        edges = bins_over(*values)
    except ValueError as error:
        raise UserError(f"free energy: {name} has no profile ({error})") from error
    found = [profile(v, edges, c.log_weight, c.island) for v, c in zip(values, clouds, strict=True)]
    return name, found[0], found[1] if len(found) > 1 else None


def free_energy(shown: Shown, coordinate: Coordinate | None) -> str:
    """Along a coordinate; one sentence where it does not vary."""
    try:
        name, found, true = profiles(shown, coordinate)
    except UserError as error:
        said = str(error).removeprefix("free energy: ")
        return document.section("Free energy", document.paragraph(f"{said[0].upper()}{said[1:]}."))
    drawn = figures.svg(lambda axes: figures.free_energy(axes, name, found, true))
    unknown = np.isnan(found.standard_error[np.isfinite(found.free_energy)])
    errors = "with two standard errors"
    if unknown.all():
        errors = "without standard errors, which take three chains or swarms with samples in a bin"
    elif unknown.any():
        errors += ", but for bins where fewer than three chains or swarms have samples"
    words = f"-log of the density of {name}, {errors}" + (
        "." if true is None else "; 0 is the lowest point of the reference."
    )
    if shown.cloud.log_weight is None and shown.found and verdict.disputed(shown.found.metrics):
        words += (
            " These samples have no weights, and the weights disagree with them (above): demx "
            "sample --weights, then demx report --samples, shows them by their weights."
        )
    return document.section("Free energy", document.figure(drawn, words))


def training(shown: Shown) -> str:
    series = figures.training_series(shown.fitted.history)
    if not series:
        return ""
    found = shown.found.metrics if shown.found else {}
    # a floor depends on n: it is that of the looks only if they had as many samples
    looked = shown.fitted.config.get("evaluation", {}).get("n")
    known = "w2" in series and "w2" in found and found["w2"].n == looked
    floor = {"w2": found["w2"].floor} if known and found["w2"].floor is not None else {}
    drawn = []
    for name, (calls, values) in series.items():
        draw = lambda axes, n=name, c=calls, v=values: figures.curve(axes, n, c, v, floor.get(n))  # noqa: E731
        drawn.append(document.figure(figures.svg(draw, 3.6, 2.6)))
    words = "Against energy calls."
    if floor:
        words += " Dashed: the floor, what perfect samples get."
    row = f'<div class="row">{"".join(drawn)}</div>'
    return document.section("Training", document.paragraph(words), row)


def judged(shown: Shown) -> str:
    """The table of metrics, and what they are."""
    header, cells = tables.rows(tables.About.of_run(shown.fitted), shown.found)
    known = [name for name in shown.found.metrics if name in DEFINITIONS]
    listed = "".join(f"<dt>{html.escape(n)}</dt><dd>{html.escape(DEFINITIONS[n])}</dd>"
                     for n in known)  # fmt: skip
    words = (
        "The floor is the same metric between two independent reference sets: what perfect "
        "samples get (of a mean: the true value). At the floor: within two standard errors of it."
    )
    table = f'<div class="scroll">{html_table([header, *cells])}</div>'
    meaning = document.folded("What these are", f"<dl>{listed}</dl>") if listed else ""
    return document.section("Metrics", document.paragraph(words), table, meaning)


DEFINITIONS = {
    "energy_mean": "mean energy of all samples; the floor is the reference's",
    "energy_median": "median energy of all samples; the floor is the reference's",
    "rhat": "how far chains are from each other, 1 if they agree: rank-normalised split R-hat",
    "effective_samples": "independent samples that those of the chains are worth",
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
    "energy_mean_weighted": "mean energy by the weights, where there is no reference",
    "psis_k": "Pareto tail index of the weights, trusted below 0.7",
    "log_z": "log Z as the method knows it",
    "log_z_lower": "ELBO",
    "log_z_is": "log Z by importance sampling",
    "log_z_upper": "EUBO on reference samples",
    "nll": "mean of -log q on reference samples",
}
