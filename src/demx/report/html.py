"""report.html: one file, nothing loaded from anywhere, that shows a run."""

import html
import json
import shlex
from pathlib import Path

import numpy as np

import demx
from demx import api, config
from demx.assessment import assess_stored, on_space
from demx.beginning import beginning, identity
from demx.errors import UserError
from demx.evaluate.evaluation import batched_energies
from demx.methods import METHODS
from demx.pace import watched
from demx.report import document, figures, sections
from demx.report.sections import Coordinate
from demx.report.shown import Shown
from demx.resolve import opening_calls
from demx.samples import Origin, Stored, read
from demx.store import write_atomic
from demx.targets.black_box import BlackBox


def write(
    run: Path, n: int = 1000, coordinate: Coordinate | None = None, samples: Path | None = None
) -> tuple[Path, list[str]]:
    """Sample, evaluate, draw, and write run/report.html; returns its path and the verdict."""
    fitted, path = api.load(run), run / "report.html"
    opening = opening_calls(fitted.config, fitted.target)
    shown = _shown(fitted, n, coordinate, samples)._replace(opening_calls=opening)
    write_atomic(path, _page(shown, coordinate).encode())
    return path, shown.found.verdict


def write_fitted(
    fitted: api.Fitted,
    path: Path,
    n: int = 1000,
    coordinate: Coordinate | None = None,
    samples: Path | None = None,
) -> Path:
    """The page of a sampler; coordinate: what the free energy is shown along, by name or a
    function of one configuration. samples: a file of its samples, to show instead of new ones."""
    write_atomic(path, _page(_shown(fitted, n, coordinate, samples), coordinate).encode())
    return path


def _shown(
    fitted: api.Fitted, n: int, coordinate: Coordinate | None, samples: Path | None
) -> Shown:
    sections.named(coordinate, fitted.target)  # refused before anything is drawn
    target = fitted.target
    if samples is not None:
        shown = _of_stored(fitted, on_space(_own(fitted, samples), target, samples), n)
        return shown._replace(file=samples.name)
    if isinstance(target, BlackBox) and METHODS[fitted.config["method"]].warm_start == "chains":
        # what is paid for is drawn once, for metrics and figures
        drawn = fitted.sample(n, seed=1)
        stored = Stored(np.asarray(drawn.x), island=np.asarray(drawn.island))
        return _of_stored(fitted, stored, n, drawn.energy_calls)
    count = 5000 if len(target.space.shape) == 1 else 2000
    if isinstance(target, BlackBox) and fitted.calls_of(n) != 0:
        count = n
    return Shown.of(fitted, fitted.evaluate(n), count)


def _own(fitted: api.Fitted, path: Path) -> Stored:
    """Samples of this sampler; a file that does not tell whose they are is believed."""
    stored, own = read(path), Origin.of(fitted.provenance())
    if stored.origin not in (None, own):
        raise UserError(
            f"{path}: expected samples of this run ({own}), found those of {stored.origin}; "
            "draw some with `demx sample`"
        )
    return stored


def _of_stored(fitted: api.Fitted, stored: Stored, n: int, sampling_calls: int = 0) -> Shown:
    """Metrics and figures of samples that are there, whose energies are asked for once."""
    with watched(fitted.target, "report", len(stored.x)):
        energies = batched_energies(fitted.target, stored.x)
    found = assess_stored(
        fitted.target, stored, n=n, reference=fitted.reference(), energies=energies,
        sampling_calls=sampling_calls + len(energies),
    )  # fmt: skip
    return Shown.of_samples(fitted, found.noted(*fitted.caveats()), stored, energies)


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
    file = f" The samples are those of {shown.file}." if shown.file else ""
    return (
        f"{p.step} of {fitted.method.outer_steps} outer loops in {p.seconds:.0f} s.{file} "
        f"Energy calls: {p.energy_calls:,} for training, {p.evaluation_calls:,} for watching it, "
        f"{shown.found.samples.energy_calls:,} for the metrics, "
        f"{shown.energy_calls + figures.contour_calls(fitted.target):,} for the figures"
        f"{f', {shown.opening_calls} to open the run' if shown.opening_calls else ''}."
    )


def _made_by(fitted: api.Fitted) -> str:
    how = command(fitted) or "demx.fit, in Python, of an energy that has no file of its own"
    began = _given_points(fitted)
    return f"demx {demx.__version__}: {how}{began}, with the configuration above; demx report."


def _given_points(fitted: api.Fitted) -> str:
    """Words about points that a user gave to begin from: of their file only a checksum is known."""
    begun = fitted.config.get("warm_start")
    own = beginning(fitted.config["method"], fitted.target, None)  # what is taken without any
    if begun is None or (own is not None and identity(own) == begun):
        return ""
    return f", and points to begin from that were given ({begun[0][0]} of them: --warm-start FILE)"


def command(fitted: api.Fitted) -> str:
    """The `demx fit` of a run, but for settings that are not the target's; '' if there is none."""
    about, p = fitted.config, fitted.progress
    if "source" not in about and "fingerprint" in about:  # an object in Python
        return ""
    name = about["target"]
    if "source" in about:
        file = Path(about["source"].rpartition(":")[0])
        here = Path.cwd()
        file = file.relative_to(here) if file.is_relative_to(here) else file
        name = f"{file}:{name.rpartition(':')[2]}"
    words = ["demx", "fit", name, "--method", about["method"], "--seed", str(about["seed"])]
    if "probe" in about and "source" not in about and config.preset(about["method"], name):
        words.append("--recipe")  # else the preset would be taken, and nothing probed
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
