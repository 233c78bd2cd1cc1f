"""Energies on the host: values, gradients, and that every call is counted."""

import io
import os
import re
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import demx
from demx import cli, devices, pace, resolve
from demx.energy import energies, evaluate, evaluate_columns, pointwise
from demx.errors import UserError
from demx.evaluate.equilibrium import Equilibrium, least_calls
from demx.pace import watched
from demx.progress import ProgressLine
from demx.space import normal
from demx.targets.black_box import BlackBox, black_box
from demx.targets.function import FunctionTarget
from demx.train import Budget


@pytest.fixture(autouse=True)
def all_devices_again(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)


def bowl(x):
    """Off the origin, and not quadratic: catches a wrong sign and a wrong point."""
    return 0.5 * np.sum((x - 1.0) ** 2) + 0.1 * np.sum(x**4), (x - 1.0) + 0.4 * x**3


def bowls(x):
    axes = tuple(range(1, x.ndim))
    return 0.5 * np.sum((x - 1) ** 2, axes) + 0.1 * np.sum(x**4, axes), (x - 1) + 0.4 * x**3


def same(x):
    return 0.5 * jnp.sum((x - 1.0) ** 2) + 0.1 * jnp.sum(x**4)


KINDS = {
    "one": lambda **where: black_box(bowl, **where),
    "batched": lambda **where: black_box(bowls, batched=True, **where),
    "differences": lambda **where: black_box(lambda x: bowl(x)[0], finite_difference=1e-4, **where),
}


@pytest.mark.parametrize("where", [{"dim": 3}, {"particles": (4, 2)}], ids=["flat", "particles"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_jax(kind, where, key):
    target = KINDS[kind](**where)
    plain = FunctionTarget(same, target.space)
    x = normal(key, target.space, (5,))
    found, want = jax.jit(evaluate, static_argnums=0)(target, x), evaluate(plain, x)
    np.testing.assert_allclose(found.log_density, want.log_density, rtol=1e-5)
    np.testing.assert_allclose(found.score, want.score, atol=1e-5)
    assert target.calls == 5 * target.calls_per_point
    size = x[0].size
    assert target.calls_per_point == (2 * size + 1 if kind == "differences" else 1)


def test_one_host_call_however_it_is_asked(key):
    """Under jit, vmap and scan; energy with gradient, by any door: one call a point."""
    target = black_box(bowl, dim=3)
    x = normal(key, target.space, (6,))

    def calls(function, *arguments):
        before = target.calls
        jax.block_until_ready(jax.jit(function)(*arguments))
        return target.calls - before

    assert calls(lambda x: energies(target, x), x) == 6
    assert calls(jax.vmap(jax.value_and_grad(target.log_density)), x) == 6
    assert calls(jax.vmap(jax.value_and_grad(pointwise(target))), x) == 6
    assert calls(jax.vmap(jax.grad(target.log_density)), x) == 6
    block = jnp.moveaxis(x.reshape(2, 3, 3), 1, -1)
    assert calls(jax.vmap(lambda c: evaluate_columns(target, c)), block) == 6
    assert calls(lambda x: jax.lax.map(lambda p: evaluate(target, p[None]), x), x) == 6
    want = jax.vmap(jax.grad(lambda p: -same(p)))(x)
    np.testing.assert_allclose(jax.vmap(jax.grad(target.log_density))(x), want, atol=1e-5)


SMALL = {
    "draws": {"num_samples": 8},
    "training": {"outer_steps": 2, "inner_steps": 2, "batch_size": 6, "new_samples": 5},
    "network": {"width": 4, "depth": 1, "embedding": 4},
    "grid": {"num_steps": 3},
    "moves": {"num_steps": 2, "num_leapfrog": 2},
    "evaluation": {"every": 2, "n": 20},
}


def test_what_demx_counts_is_what_the_function_saw():
    """Checks, probe, training, looks, samples with weights, corrections, evaluation."""
    target = black_box(bowls, dim=2, batched=True)
    sampler = demx.fit(target, scale=2.0, settings=SMALL, progress=False)
    p = sampler.progress
    assert target.calls == p.energy_calls + p.evaluation_calls
    for how in ({}, {"weights": True}, {"correct": "mala", "correct_steps": 3}):
        before = target.calls
        drawn = sampler.sample(70, **how)
        jax.block_until_ready(drawn.x)
        assert target.calls - before == drawn.energy_calls, how
    before = target.calls
    found = sampler.evaluate(20, repeats=2, likelihood="none")
    assert target.calls - before == found.samples.energy_calls == 40


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
    told = "one outer loop: 12.8k energy calls, about 5.1 s at 0.4 ms a call"
    assert told in capsys.readouterr().err
    # 300 s / 0.4 ms / 20 loops = 37 500, and the power of two below
    assert first.config["loop_calls"] == 2**15 and first.method.calls_per_step == 25 * 32 * 16
    again = fit(8e-4, budget="900s", directory=tmp_path, progress=False)
    assert again.config == first.config and again.progress == first.progress
    with pytest.warns(UserWarning, match=r"room for about 0.78 outer loops.*--method hmc"):
        fit(4e-3, budget="40s", progress=False)


CHAINS = {"sampler": {"num_chains": 4, "length": 4, "outer_steps": 2, "thin": 2, "relax_steps": 2}}


def chains(function, **options):
    target = black_box(function, dim=2)
    return demx.fit(
        target, method="hmc", scale=1.0, warm_start=np.zeros((1, 2)), progress=False,
        settings=CHAINS | {"evaluation": {"every": 0}}, **options,
    )  # fmt: skip


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


def test_finite_differences_count_each_call():
    target = black_box(lambda x: bowls(x)[0], dim=2, batched=True, finite_difference=1e-3)
    settings = {"sampler": {"num_samples": 32, "outer_steps": 2}, "evaluation": {"every": 0}}
    sampler = demx.fit(target, method="importance", scale=2.0, settings=settings, progress=False)
    assert target.calls == 5 * sampler.progress.energy_calls


def test_one_device_for_energies_on_the_host():
    assert len(devices.local()) == jax.local_device_count()
    black_box(bowl, dim=2)
    assert len(devices.local()) == 1


@pytest.mark.parametrize(
    "function, options, match",
    [
        (lambda x: 3.0, {}, r"expected \(energy, gradient\), got float; .* finite_difference=1e-3"),
        (lambda x: (3.0, x[:1]), {}, r"gradient of shape \(2,\), got \(\) and \(1,\)"),
        (lambda x: (x, x), {}, r"energy of shape \(\) and .* got \(2,\) and \(2,\)"),
        (bowl, {"batched": True}, r"energy of shape \(3,\)"),
        (lambda x: {}["a"], {}, "the function raised KeyError: 'a'"),
    ],
)
def test_what_a_function_can_get_wrong(function, options, match):
    target = black_box(function, dim=2, **options)
    with pytest.raises((UserError, RuntimeError), match=match):
        jax.block_until_ready(energies(target, jnp.ones((3, 2))))


@pytest.mark.parametrize("difference", [None, 1e-3])
def test_a_division_by_zero_is_a_bad_point_and_no_warning(difference):
    """NumPy's warnings, which are errors here, do not reach the terminal."""

    def pole(x):
        energy = np.sum(1.0 / np.abs(x))
        return energy if difference else (energy, -np.sign(x) / x**2 * (0.0 / x * 0 + 1))

    target = black_box(pole, dim=2, finite_difference=difference)
    found = evaluate(target, jnp.asarray([[1.0, 2.0], [0.0, 1.0], [jnp.nan, 1.0]]))
    assert float(found.log_density[0]) == pytest.approx(-1.5)
    assert not found.bad[0] and found.bad[2] and not jnp.isfinite(found.log_density[1:]).any()


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batched"])
@pytest.mark.parametrize("difference", [None, 1e-3], ids=["gradient", "differences"])
def test_points_that_are_not_finite_are_bad_and_not_asked(batched, difference):
    """A function that would raise there, as calculators do, does not see them."""
    seen = []

    def careful(x):
        assert np.isfinite(x).all(), "cannot convert float NaN to integer"
        seen.append(len(x) if batched else 1)
        energy, slope = bowls(x) if batched else bowl(x)
        return energy if difference else (energy, slope)

    target = black_box(careful, dim=2, batched=batched, finite_difference=difference)
    points = jnp.asarray([[1.0, 2.0], [jnp.inf, 0.0], [jnp.nan, 1.0], [0.5, 0.5]])
    found = evaluate(target, points)
    assert found.bad.tolist() == [False, True, True, False]
    np.testing.assert_allclose(found.log_density[0], -same(points[0]), rtol=1e-5)
    each = target.calls_per_point
    assert (target.calls, target.unasked, sum(seen)) == (4 * each, 2 * each, 2 * each)
    assert evaluate(target, jnp.full((3, 2), jnp.nan)).bad.all()
    assert target.calls - target.unasked == sum(seen)


def force(x):
    energy, slope = bowl(x)
    return energy, -slope


def first_alone(x):
    """Held by its first particle: not the same when they are exchanged."""
    return np.sum(x**2) + np.sum(x[0] ** 2), 2 * x + 2 * x * (np.arange(len(x)) == 0)[:, None]


@pytest.mark.parametrize(
    "function, where, match",
    [
        (force, {"dim": 3}, "this is the force; return its negative"),
        (lambda x: (bowl(x)[0], 38.7 * bowl(x)[1]), {"dim": 3}, "in the same units"),
        (lambda x: (bowl(x)[0], 0.0 * x), {"dim": 3}, r"expected the gradient .*got 0"),
        (first_alone, {"particles": (4, 2)}, r"turned, reflected or exchanged, got .*species="),
    ],
    ids=["force", "units", "zero", "symmetry"],
)
def test_what_is_not_the_gradient_or_not_symmetric_is_refused_early(function, where, match):
    target = black_box(function, **where)
    with pytest.raises(UserError, match=match):
        demx.fit(target, progress=False)
    assert target.calls <= 12


@pytest.mark.parametrize("name", ["lj13", "dw4", "gmm40"])
def test_what_is_right_passes_the_first_look(name):
    """Also where normal points of particles overlap, and in single precision."""
    plain = resolve.open_target(name, {}).target

    @jax.jit
    def both(x):
        value, slope = jax.value_and_grad(plain.log_density)(x)
        return -value, -slope

    space = plain.space
    where = {"dim": 2} if name == "gmm40" else {"particles": space.shape}
    function = lambda x: tuple(map(np.asarray, both(jnp.asarray(x, float))))  # noqa: E731
    target = black_box(function, **where)
    opened = resolve.open_target(target, {})
    particles = "particles" in where
    assert opened.energy_calls == target.calls == (12 if particles else 10)
    # walls: nothing can be told there, and nothing is said
    walls = black_box(lambda x: (np.inf, 0 * x), dim=2)
    assert resolve.open_target(walls, {}).energy_calls == 10


@pytest.mark.parametrize("zero", [0.0, -2e7])
@pytest.mark.parametrize("method", ["importance", "hmc"])
def test_energies_too_large_for_single_precision_are_warned_of(zero, method, recwarn):
    """x²/2 - 2·10⁷: neighbouring numbers are 2 apart; what is taken off leaves none of it."""
    target = black_box(lambda x: (0.5 * np.sum(x**2) - 2e7, x), dim=2, zero=zero)
    settings = CHAINS if method == "hmc" else {"sampler": {"num_samples": 32, "outer_steps": 1}}
    start = {"warm_start": np.ones((1, 2))} if method == "hmc" else {}
    demx.fit(
        target, method=method, scale=2.0, settings=settings | {"evaluation": {"every": 0}},
        progress=False, **start,
    )  # fmt: skip
    told = [str(w.message) for w in recwarn if "single precision" in str(w.message)]
    assert len(told) == (zero == 0) and all("differ by 2 kT" in t for t in told)
    assert all("black_box(…, zero=-2e+07)" in t for t in told)
    if zero:
        x = jnp.asarray([[0.0, 0.0], [0.1, 0.0]])
        np.testing.assert_allclose(energies(target, x), [0.0, 0.005], atol=1e-7)


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


def test_a_space_and_a_width_are_needed():
    with pytest.raises(ValueError, match="needs one of dim"):
        black_box(bowl)
    with pytest.raises(UserError, match="finite_difference: expected a positive number, got -1"):
        black_box(bowl, dim=2, finite_difference=-1)
    with pytest.raises(ValueError, match="species: only for particles"):
        black_box(bowl, dim=2, species=(0, 1))


def test_a_mistake_on_the_host_ends_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from demx.targets.black_box import black_box\ntarget = black_box(lambda x: [][3], dim=2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demx", "fit", "mine.py:target", "--quiet"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "demx: black box: the function raised IndexError: list index out of range"
