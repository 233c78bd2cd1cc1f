"""The benchmark of speed: which measurements, how they compare, how cost grows."""

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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
# large blocks stay with the process instead of going back to the system after each use: several
# times faster for formulations with large arrays, so this is the fair comparison
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 35), "MALLOC_TRIM_THRESHOLD_": str(1 << 35)}
Report = Callable[[str], None]


class Measured(NamedTuple):
    """Median seconds over the repetitions, all of them, and the peak memory of the process."""

    seconds: float
    each: list[float]
    gigabytes: float


class NotMeasured(RuntimeError):
    """A process ended without a result: too little memory, most often."""


def measure(repeats: int, **task: Any) -> Measured:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "demx.bench.worker", json.dumps({"repeats": repeats, **task})]
    done = subprocess.run(command, env=os.environ | ALLOCATOR, capture_output=True, text=True)
    if done.returncode:
        what = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NotMeasured(f"{task['part']} of {task['target']}: {what}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = found["seconds"]
    return Measured(statistics.median(seconds), seconds, found["peak_gigabytes"])


def against_plain(name: str, repeats: int, with_torch: bool, report: Report) -> dict[str, Any]:
    """One target: estimator, network, inner step and sampling, ours and the plain ones."""
    batch, num_samples = SIZES[name]
    every = cores()
    sizes = {"target": name, "batch": batch, "num_samples": num_samples}
    row: dict[str, Any] = {"batch": batch, "K": num_samples, "devices": every}

    def take(label: str, **task: Any) -> float:
        report(f"{name}: {label}")
        try:
            found = measure(repeats, **{**sizes, **task})
        except NotMeasured as error:  # what was measured before is not lost
            report(f"not measured: {error}")
            row[label] = None
            return float("nan")
        row[label] = found.seconds
        row[f"{label}_each"] = found.each
        row[f"{label}_gigabytes"] = found.gigabytes
        return found.seconds

    def ratio(label: str, above: float, below: float) -> None:
        row[label] = above / below if math.isfinite(above / below) else None

    fused = take("estimate", part="estimate", devices=every)
    own = take("estimate_own_noise", part="estimate", devices=every, own_noise=True)
    plain = take("plain_estimate", part="plain_estimate")
    ratio("plain_over_estimate", plain, fused)
    ratio("plain_over_own_noise", plain, own)
    ours = {"network": LEAN if name != "gmm40" else None}
    network = take("network", part="network_gradient", devices=every, **ours)
    step = take("step", part="inner_step", devices=every, **ours)
    ratio("one_device_over_step", take("step_one_device", part="inner_step", **ours), step)
    # one device may still use every core: XLA cuts large operations up by itself
    alone = take("step_one_core", part="inner_step", cores=1, **ours)
    ratio("one_core_over_step", alone, step)
    # as many points as the public code draws in an outer loop
    points = row["samples"] = 128 if name == "lj55" else 1000
    sample = take("sample", part="sampling", batch=points, devices=every)
    if name != "gmm40":
        like_published = {"kind": "egnn", "depth": ROUNDS[name]}
        egnn = {"part": "network_gradient", "devices": every, "network": like_published}
        ratio("egnn_over_network", take("network_egnn", **egnn), network)
    if with_torch:
        ratio("torch_over_estimate", take("torch_estimate", part="estimate", torch=True), fused)
        ratio("torch_over_step", take("torch_step", part="inner_step", torch=True), step)
        # seconds of 1000 equal steps, of which a few are timed
        steps = 2 if name == "lj55" else 5
        euler = {"part": "sampling", "torch": True, "batch": points, "steps": steps}
        ratio("torch_over_sample", take("torch_euler", **euler), sample)
    return row


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
        raise UserError(f"--native: {path} could not be run ({error})") from error
    pattern = r"(LJ-\d+) B=(\d+) K=(\d+) threads=2 seconds=([\d.]+)"
    found = re.findall(pattern, done.stdout)
    if not found:
        line = "LJ-13 B=512 K=1024 threads=2 seconds=0.05"
        raise UserError(f"--native: expected lines like {line!r}, got {done.stdout[:200]!r}")
    return [
        Limit(label.lower().replace("-", ""), int(batch), int(num_samples), float(seconds))
        for label, batch, num_samples, seconds in found
    ]


def against_native(limits: list[Limit], repeats: int, report: Report) -> dict[str, Any]:
    """The native limit with two threads, and ours on two devices.

    The program prints its best of five; ours is the median.
    """
    rows = {}
    for name, batch, num_samples, seconds in limits:
        report(f"{name}: estimate beside the native limit")
        sizes = {"target": name, "batch": batch, "num_samples": num_samples}
        try:
            ours = measure(repeats, part="estimate", devices=min(2, cores()), **sizes)
        except NotMeasured as error:
            report(f"not measured: {error}")
            continue
        rows[name] = {
            "batch": batch,
            "K": num_samples,
            "native": seconds,
            "estimate": ours.seconds,
            "estimate_over_native": ours.seconds / seconds,
        }
    return rows


def growth(repeats: int, report: Report) -> dict[str, Any]:
    """How the cost of an estimate and of a step grows: seconds by size, and the exponent.

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
    found = {}
    for label, (part, base, vary, values) in lines.items():
        report(f"growth: {label}")
        points = []
        for value in values:
            change = {vary: value} if vary in base else {"settings": {vary: value}}
            try:
                measured = measure(repeats, part=part, devices=cores(), **{**base, **change})
            except NotMeasured as error:
                report(f"not measured: {error}")
                continue
            points.append((value, measured.seconds))
        found[label] = _line(points)
    return found


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
    # first what can be wrong by a slip of the hand: the rest takes half an hour
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
        for target in targets:
            found["targets"][target] = against_plain(target, repeats, with_torch, report)
        if limits:
            found["native"] = against_native(limits, repeats, report)
        if with_growth:
            found["growth"] = growth(repeats, report)
    except KeyboardInterrupt:
        report("stopped: what was measured so far follows")
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
