"""Several methods on one target, each in processes of its own: the same metrics, the same count.

A method's run lives in DIRECTORY/METHOD as if it had been fitted by hand; what its evaluation said
is kept in it as comparison.json, and what its training has cost so far beside it, METHOD.cost.json,
so that a comparison goes on where it was interrupted.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from demx.config import method_entry
from demx.errors import UserError
from demx.store import write_atomic


class Row(NamedTuple):
    """What one method did; error: why it has nothing to show. seconds and peak_gigabytes: of all
    processes that trained it, their sum and the largest."""

    method: str
    evaluation: dict[str, Any]
    seconds: float
    peak_gigabytes: float
    samples: Path | None
    error: str = ""


class _Ended(NamedTuple):
    code: int
    output: str
    complaint: str


def _run(command: Sequence[str], log: Path, cost: Path | None = None) -> _Ended:
    """A demx command in a process of its own; its time and peak memory are added to `cost`."""
    begun = time.perf_counter()
    with open(log, "w+") as output, open(f"{log}.err", "w+") as complaint:
        started = subprocess.Popen(
            [sys.executable, "-m", "demx", *command], stdout=output, stderr=complaint
        )
        interrupted = False
        try:
            _, status, used = os.wait4(started.pid, 0)
        except KeyboardInterrupt:
            started.terminate()
            _, status, used = os.wait4(started.pid, 0)
            interrupted = True
        started.returncode = os.waitstatus_to_exitcode(status)
        unit = 2**30 if sys.platform == "darwin" else 2**20
        if cost is not None:
            before = _cost(cost)
            seconds = before["seconds"] + time.perf_counter() - begun
            peak = max(before["peak_gigabytes"], used.ru_maxrss / unit)
            told = {"seconds": seconds, "peak_gigabytes": peak}
            write_atomic(cost, json.dumps(told).encode())
        if interrupted:
            raise KeyboardInterrupt
        output.seek(0)
        complaint.seek(0)
        return _Ended(started.returncode, output.read(), complaint.read())


def _cost(path: Path) -> dict[str, float]:
    """What the processes so far have taken."""
    return json.loads(path.read_text()) if path.exists() else {"seconds": 0, "peak_gigabytes": 0}


def compare(
    target: str,
    methods: Sequence[str],
    directory: Path,
    *,
    budget: str | None,
    seed: int,
    n: int,
    repeats: int,
    space: Sequence[str] = (),
    settings: Sequence[str] = (),
    report: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Fit, sample and evaluate every method in turn; those already done are only read.

    space: what `demx fit` is told of the space of an energy function. settings: of the target, such
    as ["target.num_particles=7"].
    """
    if not methods:
        raise UserError("methods: expected at least one, such as smc, got none")
    for name in methods:
        method_entry(name)
    if len(set(methods)) < len(methods):
        raise UserError(f"methods: expected each once, got {', '.join(methods)}")
    directory.mkdir(parents=True, exist_ok=True)
    asked = {"target": target, "budget": budget, "seed": seed, "n": n, "repeats": repeats}
    asked |= {"space": list(space)} if space else {}
    asked |= {"settings": list(settings)} if settings else {}
    rows = []
    for name in methods:
        run, kept = directory / name, directory / name / "comparison.json"
        found = _read(kept, asked)
        if found is None:
            report(f"{name}: training")
            found = _one(name, run, asked, report)
            if not found["error"]:
                write_atomic(kept, json.dumps({"asked": asked, "found": found}).encode())
        samples = run / "samples.npz"
        rows.append(Row(name, samples=samples if samples.exists() else None, **found))
    return rows


def as_options(settings: Sequence[str]) -> list[str]:
    """Settings as a command takes them."""
    return [word for setting in settings for word in ("--set", setting)]


def _read(kept: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    if not kept.exists():
        return None
    there = json.loads(kept.read_text())
    if there["asked"] != asked:
        raise UserError(
            f"{kept.parent.parent} holds another comparison ({there['asked']}); "
            "name another --directory"
        )
    return there["found"]


def _one(name: str, run: Path, asked: dict[str, Any], report) -> dict[str, Any]:
    target, seed = asked["target"], str(asked["seed"])
    fit = ["fit", target, "--method", name, "--seed", seed, "--directory", str(run), "--quiet"]
    fit += [*asked.get("space", []), *as_options(asked.get("settings", []))]
    if asked["budget"] is not None:
        fit += ["--budget", asked["budget"]]
    size, cost = str(asked["n"]), run.with_name(f"{name}.cost.json")
    trained = _run(fit, run.with_name(f"{name}.fit.log"), cost)
    if trained.code == 0:
        report(f"{name}: sampling")
        drawn = _run(["sample", str(run), "-n", size], run.with_name(f"{name}.sample.log"))
        report(f"{name}: evaluating")
        judged = _run(
            ["evaluate", str(run), "--json", "-n", size, "--repeats", str(asked["repeats"])],
            run.with_name(f"{name}.evaluate.log"),
        )
        failed = next((e for e in (drawn, judged) if e.code != 0), None)
    else:
        failed = trained
    error = failed.complaint.strip().splitlines()[-1:] if failed else []
    return {
        "evaluation": {} if failed else json.loads(judged.output),
        **_cost(cost),
        "error": " ".join(error) or (f"exit code {failed.code}" if failed else ""),
    }
