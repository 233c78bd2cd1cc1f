"""The benchmark of speed: which measurements, how they compare, how cost grows."""

import importlib.metadata
import importlib.util
import platform
import re
import subprocess
from typing import Any, NamedTuple

import numpy as np

from demx.bench.timing import Report, in_turn, ratio
from demx.errors import UserError
from demx.machine import cores

SIZES = {  # batch and K of the public configurations
    "gmm40": (512, 500),
    "dw4": (512, 1000),
    "lj13": (512, 1000),
    "lj55": (128, 100),
}
# rounds of the EGNN of the public configurations
ROUNDS = {"dw4": 3, "lj13": 5, "lj55": 5}
LEAN = {"kind": "lean"}
SAMPLES = {"gmm40": 1000, "dw4": 1000, "lj13": 1000, "lj55": 128}  # of an outer loop there
RATIOS = {  # how many times longer the first takes than the second
    "plain_over_estimate": ("plain_estimate", "estimate"),
    "plain_over_own_noise": ("plain_estimate", "estimate_own_noise"),
    "egnn_over_network": ("network_egnn", "network"),
    "one_device_over_step": ("step_one_device", "step"),
    "one_core_over_step": ("step_one_core", "step"),
    "torch_over_estimate": ("torch_estimate", "estimate"),
    "torch_over_step": ("torch_step", "step"),
    "torch_over_sample": ("torch_euler", "sample"),
}


def groups(name: str, with_torch: bool) -> list[dict[str, dict[str, Any]]]:
    """The tasks of one target by label; those of a group are compared, and take turns."""
    batch, num_samples = SIZES[name]
    sizes = {"target": name, "batch": batch, "num_samples": num_samples}
    every = sizes | {"devices": cores()}
    torch = sizes | {"torch": True}
    ours = {"network": LEAN if name != "gmm40" else None}
    estimates = {
        "estimate": every | {"part": "estimate"},
        "estimate_own_noise": every | {"part": "estimate", "own_noise": True},
        "plain_estimate": sizes | {"part": "plain_estimate"},
    }
    networks = {"network": every | {"part": "network_gradient"} | ours}
    if name != "gmm40":
        like_published = {"network": {"kind": "egnn", "depth": ROUNDS[name]}}
        networks["network_egnn"] = every | {"part": "network_gradient"} | like_published
    steps = {
        "step": every | {"part": "inner_step"} | ours,
        # may still use every core: XLA cuts large operations up by itself
        "step_one_device": sizes | {"part": "inner_step"} | ours,
        "step_one_core": sizes | {"part": "inner_step", "cores": 1} | ours,
    }
    samples = {"sample": every | {"part": "sampling", "batch": SAMPLES[name]}}
    if with_torch:
        estimates["torch_estimate"] = torch | {"part": "estimate"}
        steps["torch_step"] = torch | {"part": "inner_step"}
        # seconds of 1000 equal steps, of which a few are timed
        few = {"batch": SAMPLES[name], "steps": 2 if name == "lj55" else 5}
        samples["torch_euler"] = torch | {"part": "sampling"} | few
    return [estimates, networks, steps, samples]


def against_plain(
    name: str, repeats: int, with_torch: bool, report: Report, row: dict[str, Any]
) -> None:
    """One target: estimator, network, inner step and sampling, ours and the plain ones.

    Group by group into `row`, so that those which are done are not lost if it ends early.
    """
    batch, num_samples = SIZES[name]
    row |= {"batch": batch, "K": num_samples, "devices": cores(), "samples": SAMPLES[name]}
    for tasks in groups(name, with_torch):
        report(f"{name}: {', '.join(tasks)}")
        found = in_turn(repeats, tasks, report)
        for label, one in found.items():
            row[label] = None if one is None else one.seconds
            if one is not None:
                row[f"{label}_each"], row[f"{label}_gigabytes"] = one.each, one.gigabytes
        for label, (above, below) in RATIOS.items():
            if above in found:
                row[label] = ratio(found[above], found[below])


class Limit(NamedTuple):
    """What the native program printed of one target."""

    target: str
    batch: int
    num_samples: int
    seconds: float


def native_limits(path: str) -> list[Limit]:
    """Run the program at `path`, and read what it prints of two threads."""
    try:
        done = subprocess.run([path], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        what = getattr(error, "strerror", None) or f"exit code {getattr(error, 'returncode', '?')}"
        raise UserError(
            f"--native: expected a program that runs without arguments, got {path} ({what})"
        ) from error
    pattern = r"(LJ-\d+) B=(\d+) K=(\d+) threads=2 seconds=([\d.]+)"
    found = re.findall(pattern, done.stdout)
    if not found:
        line = "LJ-13 B=512 K=1024 threads=2 seconds=0.05"
        raise UserError(f"--native: expected lines like {line!r}, got {done.stdout[:200]!r}")
    return [
        Limit(label.lower().replace("-", ""), int(batch), int(num_samples), float(seconds))
        for label, batch, num_samples, seconds in found
    ]


def against_native(limits: list[Limit], repeats: int, report: Report, rows: dict[str, Any]) -> None:
    """The native limit with two threads, and ours on two devices, into `rows`.

    The program prints its best of five; ours is the median.
    """
    for name, batch, num_samples, seconds in limits:
        report(f"{name}: estimate beside the native limit")
        sizes = {"target": name, "batch": batch, "num_samples": num_samples}
        task = sizes | {"part": "estimate", "devices": min(2, cores())}
        ours = in_turn(repeats, {"estimate": task}, report)["estimate"]
        if ours is None:
            continue
        rows[name] = {
            "batch": batch,
            "K": num_samples,
            "native": seconds,
            "estimate": ours.seconds,
            "estimate_over_native": ours.seconds / seconds,
        }


def growth(repeats: int, report: Report, found: dict[str, Any]) -> None:
    """How the cost of an estimate and of a step grows, into `found`: seconds by size, and exponent.

    The exponent is the slope of log seconds against log size between the largest three sizes.
    """
    lj = {"target": "lj13", "batch": 128, "num_samples": 256, "network": LEAN}
    cluster = {"target": "lennard_jones", "batch": 64, "num_samples": 128}
    mixture = {"target": "gaussian_mixture", "batch": 128, "num_samples": 128}
    lines = {  # a part, its sizes, the one that varies (of the target, if it is not a size), values
        "estimate, K": ("estimate", lj, "num_samples", (256, 512, 1024, 2048, 4096)),
        "estimate, batch": ("estimate", lj, "batch", (64, 128, 256, 512, 1024)),
        "step, K": ("inner_step", lj, "num_samples", (64, 256, 1024, 4096)),
        "step, batch": ("inner_step", lj, "batch", (64, 128, 256, 512)),
        "estimate, particles": ("estimate", cluster, "num_particles", (8, 13, 26, 55, 110)),
        "estimate, dimension": ("estimate", mixture, "dim", (2, 8, 32, 128, 512)),
    }
    for label, (part, base, vary, values) in lines.items():
        report(f"growth: {label}")
        tasks = {}
        for value in values:
            change = {vary: value} if vary in base else {"settings": {vary: value}}
            tasks[value] = base | {"part": part, "devices": cores()} | change
        measured = in_turn(repeats, tasks, report)
        found[label] = _line([(size, one.seconds) for size, one in measured.items() if one])


def _line(points: list[tuple[int, float]]) -> dict[str, Any]:
    sizes, seconds = ([p[i] for p in points] for i in (0, 1))
    slope = None
    if len(points) > 1:
        slope = float(np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0])
    return {"sizes": sizes, "seconds": seconds, "exponent": slope}


def run(
    targets: tuple[str, ...],
    repeats: int,
    native_path: str | None,
    with_growth: bool,
    report: Report,
) -> dict[str, Any]:
    """All of it, as a tree of numbers."""
    unknown = sorted(set(targets) - set(SIZES))
    if unknown or not targets:
        got = ", ".join(unknown) or "none"
        raise UserError(f"targets: expected some of {', '.join(SIZES)}, got {got}")
    # first what can be wrong by a slip of the hand: the rest takes a while
    limits = [] if native_path is None else native_limits(native_path)
    with_torch = importlib.util.find_spec("torch") is not None
    found: dict[str, Any] = {
        "cores": cores(),
        "repeats": repeats,
        "torch": with_torch,
        "versions": _versions(),
        "targets": {},
    }
    try:
        if limits:  # at once, since the program has just run
            against_native(limits, repeats, report, found.setdefault("native", {}))
        for target in targets:
            row = found["targets"].setdefault(target, {})
            against_plain(target, repeats, with_torch, report, row)
        if with_growth:
            growth(repeats, report, found.setdefault("growth", {}))
    except KeyboardInterrupt:
        report("stopped: what was finished so far follows")
        found["stopped"] = True
    return found


def _versions() -> dict[str, str]:
    """Of what is timed, as far as it is installed."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("demx", "jax", "jaxlib", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
