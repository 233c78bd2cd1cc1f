"""Energies that take their time: sizes, budgets and stops in the midst of a loop."""

import contextlib
import io
import os
import re
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import demx
from demx import devices, interruption, pace, resolve
from demx.budget import Budget
from demx.energy import energies
from demx.errors import UserError
from demx.evaluate.equilibrium import Equilibrium, least_calls
from demx.methods.moves import Moves
from demx.pace import watched
from demx.progress import ProgressLine
from demx.targets.black_box import BlackBox, black_box
from hosts import CHAINS, SMALL, bowl, bowls


@pytest.fixture(autouse=True)
def all_devices_again(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)


def test_sizes_for_a_slow_function_are_chosen_once(tmp_path, monkeypatch, capsys):
    """A run goes on with the sizes it began with, whatever the clock says by then."""
    settings = {
        "training": {"outer_steps": 1}, "network": SMALL["network"], "grid": SMALL["grid"],
        "evaluation": {"every": 0},
    }  # fmt: skip

    def fit(seconds, **options):
        monkeypatch.setattr(BlackBox, "seconds_per_point", seconds)
        target = black_box(bowls, dim=2, batched=True)
        return demx.fit(target, scale=2.0, settings=settings, **options)

    first = fit(4e-4, budget="300s", directory=tmp_path)
    told = "one outer loop: 15.4k energy calls, about 6.2 s at 0.4 ms a call"
    assert told in capsys.readouterr().err
    # 300 s / 0.4 ms / 20 loops = 37 500, and the power of two below
    assert first.config["loop_calls"] == 2**15 and first.method.calls_per_step == (
        25 * 32 * 16 + Moves(num_steps=20, num_leapfrog=4).calls(32)
    )
    again = fit(8e-4, budget="900s", directory=tmp_path, progress=False)
    assert again.config == first.config and again.progress == first.progress
    with pytest.warns(UserWarning, match=r"room for about 0.65 outer loops.*--method hmc"):
        fit(4e-3, budget="40s", progress=False)


def chains(function, **options):
    target = black_box(function, dim=2)
    return demx.fit(
        target, method="hmc", scale=1.0, warm_start=np.zeros((1, 2)), progress=False,
        settings=CHAINS | {"evaluation": {"every": 0}}, **options,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:the budget has room for")
def test_a_long_loop_is_given_up_and_done_again(tmp_path):
    """When time is up in its midst: the run goes on as if it had not been stopped."""
    pause = [0.0]

    def slow(x):
        time.sleep(pause[0])
        return bowl(x)

    whole = chains(bowl)
    first = whole.progress.energy_calls - 4 * 4 * 8  # all but the second loop
    one = chains(slow, directory=tmp_path, budget=f"{first}calls").progress
    assert one.step == 1 and one.energy_calls == first
    pause[0] = 0.05  # the second loop would take 6.4 s
    half = chains(slow, directory=tmp_path, budget=f"{one.seconds + 2:.1f}s")
    assert half.ended == "budget" and half.progress.step == 1
    assert half.progress.energy_calls == first
    # telling the energy apart takes calls too, but not of the loop
    assert half.progress.given_up_calls == half.target.calls - resolve.FINGERPRINT
    assert half.progress.seconds > one.seconds
    pause[0] = 0.0
    again = chains(slow, directory=tmp_path)
    assert again.progress.given_up_calls == half.progress.given_up_calls
    assert again.progress.energy_calls == whole.progress.energy_calls
    for a, b in zip(jax.tree.leaves(again.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_stops_a_loop_in_its_midst(number, tmp_path, capfd):
    """At once, though the main thread waits for a compiled program."""
    started = []

    def endless(x):
        started.append(1)
        if len(started) == 500:
            os.kill(os.getpid(), number)
        time.sleep(0.1 if len(started) >= 500 else 0.0)
        return bowl(x)

    settings = CHAINS["sampler"] | {"length": 500, "outer_steps": 1}
    fitted = demx.fit(
        black_box(endless, dim=2), method="hmc", scale=1.0, directory=tmp_path, progress=False,
        warm_start=np.zeros((1, 2)), settings={"sampler": settings},
    )  # fmt: skip
    assert fitted.ended == "interrupted" and fitted.progress.step == 0
    assert len(started) < 520 and "Traceback" not in capfd.readouterr().err


def test_a_look_that_is_stopped_keeps_the_loop_before_it(tmp_path):
    """Ctrl-C in a look: only the look is made again, with the same key, and all ends the same."""
    asked, stop_at = [], [10**9]

    def counted(x):
        asked.append(1)
        if len(asked) == stop_at[0]:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return bowl(x)

    def fit(directory):
        asked.clear()
        settings = CHAINS | {"evaluation": {"every": 1, "n": 20}}
        return demx.fit(
            black_box(counted, dim=2), method="hmc", scale=1.0, directory=directory,
            warm_start=np.zeros((1, 2)), settings=settings, progress=False,
        )  # fmt: skip

    whole = fit(tmp_path / "whole")
    total, look = len(asked), whole.progress.evaluation_calls // 2
    stop_at[0] = total - look // 2
    half = fit(tmp_path / "parts")
    assert half.ended == "interrupted" and half.progress.step == 2
    assert half.progress.energy_calls == whole.progress.energy_calls
    assert len(asked) == stop_at[0]
    assert half.progress.given_up_calls == look - look // 2
    stop_at[0] = 10**9
    again = fit(tmp_path / "parts")
    assert again.ended == "steps" and len(asked) == look + resolve.FINGERPRINT
    assert again.progress.evaluation_calls == whole.progress.evaluation_calls
    assert again.progress.watch == whole.progress.watch and again.progress.kept == 2
    for a, b in zip(jax.tree.leaves(again.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(a, b)
    lines = [(tmp_path / d / "metrics.jsonl").read_bytes() for d in ("whole", "parts")]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("method", ["hmc", "idem"])
def test_a_run_that_goes_on_repeats_neither_probe_nor_beginning(method, tmp_path):
    """Nothing but what tells the energy apart is asked again."""
    asked = []

    def counted(x):
        asked.append(len(x))
        return bowls(x)

    def fit(budget=None):
        asked.clear()
        settings = {"sampler": CHAINS["sampler"]} if method == "hmc" else SMALL
        settings = settings | {"evaluation": {"every": 0}}
        return demx.fit(
            black_box(counted, dim=2, batched=True), method=method, scale=2.0, settings=settings,
            directory=tmp_path, budget=budget, progress=False,
        )  # fmt: skip

    first = fit("20000calls")
    assert sum(asked) == first.progress.energy_calls and first.progress.step == 2
    assert first.progress.seconds > first.target.host.seconds > 0
    again = fit()
    assert sum(asked) == resolve.FINGERPRINT
    assert again.config == first.config and again.progress == first.progress
    assert first.config["probe"]["energy_calls"] > 10_000


@pytest.mark.filterwarnings("ignore:the budget has room for")
@pytest.mark.parametrize("part", ["the probe of the energy", "the method had begun"])
def test_a_budget_covers_what_comes_before_training(part, tmp_path):
    """It ends there, in time, and says so."""
    asked = []
    probing = "probe" in part

    def slow(x):
        asked.append(1)
        time.sleep(0.05 if probing or len(asked) > 450 else 0.0)
        return bowl(x)

    start = {} if probing else {"warm_start": np.zeros((400, 2))}
    sampler = CHAINS["sampler"] | {"num_chains": 2 if probing else 400}
    begun = time.perf_counter()
    with pytest.raises(UserError, match=rf"budget: .*{part}.*larger budget"):
        demx.fit(
            black_box(slow, dim=2), method="hmc", scale=1.0, budget="2s", progress=False,
            settings={"sampler": sampler}, directory=tmp_path, **start,
        )  # fmt: skip
    assert time.perf_counter() - begun < 10  # 16 768 calls, and 400, would take 838 and 20 s


def test_what_samples_and_references_take_is_said_before(monkeypatch, capsys):
    """Of a slow function only; HMC takes 8 calls a transition, 2 of them between samples."""
    monkeypatch.setattr(BlackBox, "seconds_per_point", 0.1)
    sampler = chains(bowl)
    drawn = sampler.sample(7)
    said = capsys.readouterr().err
    assert f"samples: {drawn.energy_calls} energy calls, about 13 s at 0.1 s a call" in said
    assert drawn.energy_calls == 8 * 2 * 8
    sampler.evaluate(10, repeats=1, likelihood="none")
    assert "evaluate: 202 energy calls" in capsys.readouterr().err
    settings = Equilibrium(num_chains=8, max_rungs=2, num_leapfrog=2)
    with watched(sampler.target, "reference", least_calls(100, settings), least=True):
        pass
    assert "reference: at least" in capsys.readouterr().err


def test_how_far_it_is_is_shown_meanwhile(monkeypatch, capsys):
    monkeypatch.setattr(pace, "EVERY", 0.05)
    target = black_box(lambda x: (time.sleep(0.02), bowl(x))[1], dim=2)
    with watched(target, "samples"):
        jax.block_until_ready(energies(target, jnp.ones((20, 2))))
    assert re.search(r"samples: \d+ energy calls so far, in 0\.\d+ s", capsys.readouterr().err)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_a_long_loop_shows_how_far_it_is(terminal):
    text, asked = io.StringIO(), [100]
    console = Console(file=text, force_terminal=terminal, width=100)
    with ProgressLine(10, Budget(), 4000, console, lambda: asked[0]) as line:
        line.since -= 30.0
        asked[0] += 1000
        line._beat()
        asked[0] += 3500
        line.last_print = -100.0
        line._beat()
    said = " ".join(text.getvalue().split())
    # a quarter in 30 seconds: three times that is left
    assert ("1k of 4k energy calls, 1:30 left" in said) != terminal
    assert "looking at the samples, 500 energy calls" in said


class Refusal(Exception):
    pass


@pytest.mark.parametrize("where", ["watched", "train"])
def test_what_a_function_raises_after_a_request_to_stop_is_told(where, tmp_path):
    """Not taken for the stop: a calculator in a process of its own may end by the same Ctrl-C."""
    asked = []

    def refusing(x):
        asked.append(1)
        if len(asked) == 400:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            raise Refusal("no more")
        return bowl(x)

    target = black_box(refusing, dim=2)
    with pytest.raises(UserError, match="black box: the function raised Refusal: no more"):
        if where == "watched":
            with watched(target, "samples"):
                jax.block_until_ready(energies(target, jnp.ones((500, 2))))
        else:
            settings = CHAINS["sampler"] | {"length": 500, "outer_steps": 1}
            demx.fit(
                target, method="hmc", scale=1.0, directory=tmp_path, progress=False,
                warm_start=np.zeros((1, 2)), settings={"sampler": settings},
            )  # fmt: skip


def test_ctrl_c_that_was_swallowed_is_remembered():
    """JAX calls back Python, and throws away what that raises: the run is stopped all the same."""
    with interruption.heard_early():
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        with interruption.stop_requested() as stop:
            assert stop()
    with interruption.stop_requested() as stop:
        assert not stop()
