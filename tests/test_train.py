"""The training loop: budgets, resume to the bit, divergence, interruption."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import api
from demx.budget import Budget, parse_budget
from demx.errors import Diverged, UserError
from demx.store import Store
from demx.train import Progress, train
from demx.types import Info, Method, Samples
from demx.watch import Watch

TINY = {
    "draws": {"num_samples": 8},
    "network": {"width": 8, "depth": 1, "embedding": 4},
    "training": {
        "outer_steps": 6,
        "inner_steps": 2,
        "batch_size": 8,
        "new_samples": 8,
        "schedule": "constant",
    },
    "buffer": {"capacity": 16},
    "grid": {"num_steps": 4},
    "evaluation": {"every": 2, "n": 20},
}


def settings(**training):
    return TINY | {"training": TINY["training"] | training}


def leaves(fitted):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(fitted.state)]


def counting(fail_at=None, calls=10):
    """A method whose state is a count and whose loss is its inverse."""

    def step(key, state):
        new = state + 1
        loss = jnp.where(new == (fail_at or -1), jnp.nan, 1 / new)
        zero = jnp.zeros((), int)
        return new, Info(loss, loss, loss, loss, zero, zero, jnp.zeros(()))

    return Method(
        lambda key: jnp.zeros(()), step, lambda key, state, n: Samples(jnp.zeros((n, 1))), calls
    )


def test_energy_calls_bound_the_run():
    trained = train(counting(), seed=0, outer_steps=100, budget=Budget(energy_calls=55.0))
    progress = trained.progress
    assert trained.ended == "budget"
    assert progress.step == 5 and progress.energy_calls == 50


def test_seconds_bound_the_run():
    budget = Budget(seconds=0.3)
    progress = train(counting(), seed=0, outer_steps=10**9, budget=budget).progress
    assert 0.3 <= progress.seconds < 3


def test_divergence_keeps_the_last_good_state(tmp_path):
    store = Store(tmp_path / "run")
    with pytest.raises(Diverged, match=r"outer loop 4.*state of loop 3 is kept.*learning_rate"):
        train(counting(fail_at=4), seed=0, outer_steps=9, keeper=store)
    (state, _), header = store.load((jnp.zeros(()), jnp.zeros(())))
    assert float(state) == 3 and header["step"] == 3


@pytest.mark.parametrize(
    "text, want",
    [
        ("90s", Budget(seconds=90.0)),
        ("10m", Budget(seconds=600.0)),
        ("2h", Budget(seconds=7200.0)),
        ("5e6calls", Budget(energy_calls=5e6)),
        (None, Budget()),
    ],
)
def test_budgets(text, want):
    assert parse_budget(text) == want


@pytest.mark.parametrize("text", ["10", "m", "-5s", "tenm", "nans", ""])
def test_budgets_that_are_refused(text):
    with pytest.raises(UserError, match="budget: expected a time like"):
        parse_budget(text)


def test_larger_budgets_go_on_like_one(tmp_path):
    """At a rate that stays; looks at the end of a budget change nothing but what is known."""
    whole = demx.fit("gmm40", settings=settings(), directory=tmp_path / "a", progress=False)
    per_step = whole.progress.energy_calls // 6 + whole.progress.evaluation_calls // 3
    for steps in (1, 4, 9):
        budget = f"{per_step * steps}calls"
        parts = demx.fit(
            "gmm40", settings=settings(), directory=tmp_path / "b", budget=budget, progress=False
        )
    assert parts.progress.step == 6
    for a, b in zip(leaves(whole), leaves(parts), strict=True):
        np.testing.assert_array_equal(a, b)
    found = [
        [json.loads(line) for line in (tmp_path / d / "metrics.jsonl").read_text().splitlines()]
        for d in "ab"
    ]
    looks = [[line.pop("evaluation", None) is not None for line in lines] for lines in found]
    assert found[0] == found[1] and [line["step"] for line in found[0]] == [1, 2, 3, 4, 5, 6]
    assert looks == [[False, True] * 3, [True, True, False, True, False, True]]


def start(directory, *extra):
    """`demx fit gmm40` in a process of its own; what it prints goes to directory.log."""
    flags = []
    for section, values in TINY.items():
        for name, value in values.items():
            flags += ["--set", f"{section}.{name}={value}"]
    flags += ["--set", "training.outer_steps=400", "--set", "evaluation.every=50"]
    flags += ["--checkpoint-seconds", "0.2", *extra]
    command = [sys.executable, "-m", "demx", "fit", "gmm40", "--directory", str(directory), *flags]
    # compiled as users do it, not as quickly as the other tests
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with open(f"{directory}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def count_lines(directory):
    path = directory / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_for_lines(directory, count, process):
    for _ in range(2400):
        if count_lines(directory) >= count or process.poll() is not None:
            return
        time.sleep(0.05)
    raise AssertionError("no progress in two minutes")


def test_kill_nine_three_times_and_end_the_same(tmp_path, seed):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(timeout=300) == 0, (tmp_path / "whole.log").read_text()
    moments, deaths = random.Random(seed), 0
    for _ in range(3):
        process = start(killed)
        wait_for_lines(killed, count_lines(killed) + moments.randint(1, 60), process)
        time.sleep(moments.random() * 0.1)
        process.kill()
        deaths += process.wait() == -signal.SIGKILL
    assert deaths == 3
    assert start(killed).wait(timeout=300) == 0, (tmp_path / "killed.log").read_text()
    a, b = Store(whole), Store(killed)
    assert len(a.history()) == 400
    assert a.metrics_file.read_bytes() == b.metrics_file.read_bytes()
    for x, y in zip(leaves(api.load(whole)), leaves(api.load(killed)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_ctrl_c_stops_cleanly_and_the_run_goes_on(tmp_path):
    run = tmp_path / "run"
    process = start(run, "--set", "training.outer_steps=100000")
    wait_for_lines(run, 5, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    said = (tmp_path / "run.log").read_text()
    assert "the same command goes on" in said and "stopping after this loop" in said
    steps = [line["step"] for line in Store(run).history()]
    assert api.load(run).progress.step == steps[-1] >= 5


def test_a_run_that_is_opened_again_knows_why_it_ended(tmp_path):
    first = demx.fit(
        "gmm40", settings=settings(), directory=tmp_path, budget="300calls", progress=False
    )
    assert first.ended == api.load(tmp_path).ended == "budget"
    demx.fit("gmm40", settings=settings(), directory=tmp_path, progress=False)
    again = api.load(tmp_path)
    assert again.ended == "steps" and "6 of 6, ended by steps" in repr(again)
    store = Store(tmp_path)
    state, header = store.load((again.state, again.state))
    store.save(state, header | {"ended": None})  # as a killed run leaves it
    assert api.load(tmp_path).ended is None and "ended" not in repr(api.load(tmp_path))


def test_another_configuration_is_refused(tmp_path):
    demx.fit("gmm40", settings=settings(), directory=tmp_path, budget="1e4calls", progress=False)
    with pytest.raises(UserError, match=r"training\.batch_size: there 8, now 16"):
        demx.fit("gmm40", settings=settings(batch_size=16), directory=tmp_path, progress=False)


@pytest.mark.parametrize("damage", ["truncate", "flip", "header"])
def test_damaged_checkpoints_are_refused(tmp_path, damage):
    demx.fit("gmm40", settings=settings(outer_steps=1), directory=tmp_path, progress=False)
    path = Store(tmp_path).checkpoint_file
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[-10] ^= 255
    else:
        data = data[40:]
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged checkpoint"):
        api.load(tmp_path)


def test_checkpoints_of_another_layout_are_refused(tmp_path):
    """Their arrays could have the right shapes and mean something else."""
    store = Store(tmp_path)
    store.save(jnp.ones(2), {})
    first, _, payload = store.checkpoint_file.read_bytes().partition(b"\n")
    header = json.loads(first)
    del header["format"]  # as those of before had none
    store.checkpoint_file.write_bytes(json.dumps(header).encode() + b"\n" + payload)
    with pytest.raises(UserError, match="written by another version of demx"):
        store.load(jnp.zeros(2))


def test_progress_survives_a_round_trip(tmp_path):
    watch = Watch((1.0, 2.0, 3.0), 2.0, 4, False)
    store, progress = Store(tmp_path), Progress(3, 2**40, 5, 1.5, 2, watch)
    store.save(jnp.ones(2), asdict(progress))
    _, header = store.load(jnp.zeros(2))
    assert Progress.of(header) == progress


def test_a_refused_command_leaves_nothing_behind(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(UserError, match="batch_size: expected at least 1"):
        demx.fit("gmm40", settings=settings(batch_size=-3), directory=run, progress=False)
    assert not run.exists()


def bowl(x):
    return jnp.sum(x**2)


def test_another_energy_of_the_same_name_is_refused(tmp_path):
    options = dict(settings=settings(outer_steps=1), directory=tmp_path, progress=False)
    demx.fit(bowl, dim=2, **options)
    changed = lambda x: 2 * jnp.sum(x**2)  # noqa: E731
    changed.__name__ = "bowl"
    with pytest.raises(UserError, match=r"another configuration \(the energy was another"):
        demx.fit(changed, dim=2, **options)
    with pytest.raises(UserError, match="a run of an energy given in Python"):
        api.load(tmp_path)
    assert demx.fit(bowl, dim=2, **options).progress.step == 1


def test_another_warm_start_is_refused(tmp_path):
    options = dict(settings=settings(outer_steps=1), directory=tmp_path, progress=False)
    demx.fit("gmm40", warm_start=np.ones((4, 2)), **options)
    with pytest.raises(UserError, match=r"another configuration \(warm_start"):
        demx.fit("gmm40", warm_start=np.zeros((4, 2)), **options)
    with pytest.raises(UserError, match=r"warm start: expected .*\(n, 2\), found \(4, 3\)"):
        demx.fit("gmm40", warm_start=np.zeros((4, 3)), settings=settings(), progress=False)


def test_two_processes_cannot_share_a_directory(tmp_path):
    with Store(tmp_path).lock(), pytest.raises(UserError, match="another process is training"):
        demx.fit("gmm40", settings=settings(), directory=tmp_path, progress=False)


def test_a_run_without_any_usable_target_diverges():
    """Finite at a few points, so that it is accepted, and nowhere that training looks."""

    def energy(x):
        return jnp.where(jnp.sum(x**2) < 4.0, jnp.sum(x**2), jnp.nan)

    with (
        pytest.raises(Diverged, match="of the updates were not finite"),
        pytest.warns(UserWarning, match=r"\d+ of 256 normal points"),
    ):
        demx.fit(
            energy,
            dim=2,
            scale=1.0,
            progress=False,
            settings=settings()
            | {"precondition": {"sigma_data": 1e4}, "noise": {"sigma_max": 1e5}},
        )


@pytest.mark.parametrize("radius, warned", [(3.0, True), (40.0, False)])
def test_energies_without_a_number_are_warned_of(radius, warned, recwarn):
    """Nan where training goes; or, forty times farther out than the mass, nearly nowhere."""
    energy = lambda x: jnp.where(jnp.sum(x**2) < radius**2, jnp.sum(x**2), jnp.nan)  # noqa: E731
    demx.fit(energy, dim=2, scale=1.0, progress=False, settings=settings())
    told = [str(w.message) for w in recwarn if "not finite while training" in str(w.message)]
    assert bool(told) == warned
