"""Whole trainings against their bars; run by make test-slow."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import demx
from demx.store import Store

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("training_seed", [0, 1, 2])
def test_gmm40_reaches_the_floor_in_two_minutes(tmp_path, training_seed):
    fitted = demx.fit("gmm40", seed=training_seed, directory=tmp_path)
    print(fitted)
    found = fitted.evaluate(1000, repeats=10).metrics
    print(json.dumps({name: metric._asdict() for name, metric in found.items()}, indent=1))
    assert found["modes_hit"].value == 40
    assert found["w2"].value <= 1.1 * found["w2"].floor
    assert found["mode_tv"].value <= 0.05  # n = 10 000
    assert found["outside_share"].value <= 0.02
    assert fitted.progress.seconds < 120


@pytest.mark.parametrize("target, reached", [("lj13", -38.0), ("lj55", -150.0)])
@pytest.mark.parametrize("training_seed", range(5))
def test_clusters_condense_from_any_seed(tmp_path, target, reached, training_seed):
    """No value that is not finite, and the median energy falls toward the reference."""
    demx.fit(target, seed=training_seed, budget="3m", directory=tmp_path)
    history = Store(tmp_path).history()
    medians = [h["evaluation"]["energy_median"] for h in history if "evaluation" in h]
    print(medians)
    assert np.isfinite([h["loss"] for h in history]).all()
    assert sum(h["bad"] + h["skipped"] for h in history) == 0
    assert medians[-1] < reached
    # smoothed over thirds, it falls and does not come back
    first, *_, last = (np.median(part) for part in np.array_split(medians, 3))
    assert last <= first


def fresh(directory):
    """The environment of a command as a user runs it, with nothing compiled before."""
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return kept | {"JAX_COMPILATION_CACHE_DIR": str(directory / "compiled")}


def test_memory_of_a_large_step(tmp_path):
    """A step on lj13 with batch 512 and K = 1000 stays below 1.5 GB."""
    code = """
import jax, resource
from demx import api, config
settings = {"walk": None, "draws": {"num_samples": 1000}}
settings["training"] = {"batch_size": 512, "inner_steps": 2}
target, full = api.resolve("lj13", settings=settings)
method = config.build_method("idem", target, full)
state, info = method.step(jax.random.key(1), method.init(jax.random.key(0)))
print(float(info.loss), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=fresh(tmp_path),
    )
    kilobytes = float(done.stdout.split()[1])
    print(f"{kilobytes / 2**20:.2f} GB")
    assert kilobytes < 1.5 * 2**20


@pytest.mark.parametrize("target", ["gmm40", "dw4", "lj13", "lj55", "many_well"])
def test_memory_of_a_training(tmp_path, target):
    """The command with the preset, nothing compiled before: the largest resident size, in all."""
    short = ["--set", "training.outer_steps=2", "--set", "training.inner_steps=3"]
    command = [sys.executable, "-m", "demx", "fit", target, "--directory", str(tmp_path / "run")]
    child = subprocess.Popen([*command, *short, "--quiet"], env=fresh(tmp_path))
    _, child.returncode, used = os.wait4(child.pid, 0)
    assert child.returncode == 0
    gigabytes = used.ru_maxrss / 2**20
    print(f"{target}: peak {gigabytes:.2f} GB")
    assert gigabytes < 1.5


def test_memory_is_flat_over_a_thousand_loops(tmp_path):
    """Resident size from loop 100 to loop 1000 of a training, looks and checkpoints included.

    The median step from one block of 50 loops to the next: what every loop leaves behind, without
    the few times that the allocator takes a piece more. Bound: a twentieth of a batch of the
    preset's regression points a loop, 2 kB. With those times, two hundred batches in all.
    """
    sizes = ["training.outer_steps=1000", "training.inner_steps=1", "training.new_samples=16",
             "training.batch_size=16", "network.width=8", "network.num_basis=8",
             "moves.num_steps=2", "walk.num_moves=1", "grid.num_steps=4",
             "evaluation.n=16"]  # fmt: skip
    command = [sys.executable, "-m", "demx", "fit", "lj13", "--directory", str(tmp_path)]
    command += [word for size in sizes for word in ("--set", size)]
    child = subprocess.Popen([*command, "--quiet"], env=fresh(tmp_path))
    resident, deadline = {}, time.monotonic() + 600
    while child.poll() is None:
        assert time.monotonic() < deadline, "not done in ten minutes"
        time.sleep(0.05)
        lines = tmp_path / "metrics.jsonl"
        loops = lines.read_text().count("\n") if lines.exists() else 0
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = pathlib.Path(f"/proc/{child.pid}/statm").read_text()
            resident[loops] = int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert child.returncode == 0
    blocks = [
        np.median([size for loops, size in resident.items() if loop <= loops < loop + 50])
        for loop in range(100, 1000, 50)
    ]
    slope = float(np.median(np.diff(blocks))) / 50
    first, last = blocks[0] / 2**20, blocks[-1] / 2**20
    batch = 128 * 13 * 3 * 4  # bytes of x_t; targets are as many
    print(f"{first:.1f} MB at loop 100, {last:.1f} at loop 950, median {slope:.0f} bytes a loop")
    assert slope < 2 * batch / 20
    assert last - first < 400 * 2 * batch / 2 / 2**20
