"""The speed benchmark: its parts compute what they claim, and it survives what cannot be run."""

import json
import signal
import stat
import sys

import jax
import numpy as np
import pytest

from demx import resolve
from demx.bench import parts, speed, timing
from demx.commands.bench import bench
from demx.errors import UserError
from demx.report import figures
from demx.report import speed as tables
from demx.targets.gaussian_mixture import GaussianMixture


def quiet(text):
    pass


def fake(monkeypatch, seconds=0.5):
    """Measurements that cost nothing, and the tasks that were asked for; those of torch fail."""
    asked = []

    def in_turn(repeats, tasks, report):
        asked.extend(tasks.values())
        found = {}
        for label, task in tasks.items():
            size = task["num_samples"] * task["batch"]
            slower = {"plain_estimate": 7.0, "inner_step": 3.0}.get(task["part"], 1.0)
            slower *= 2.0 if task.get("devices", 1) == 1 else 1.0
            each = [seconds * size * slower] * repeats
            found[label] = None if task.get("torch") else timing.Measured(each[0], each, 1.0)
        return found

    monkeypatch.setattr(speed, "in_turn", in_turn)
    monkeypatch.setattr(speed, "cores", lambda: 2)
    return asked


def test_the_estimates_that_are_timed_are_of_the_smoothed_score():
    """For N(0, s²) and noise σ² the score is -x/(s² + σ²); here s² = 2, σ² = 0.25.

    The weights carry s²/(s² + 2σ²) or more of the samples, a gradient has the variance σ²/s⁴:
    a standard error of √(0.25/4 · 1.25/20 000) = 0.002, six of which for the largest of 8.
    """
    target = GaussianMixture(np.zeros((1, 2)), np.array([2**0.5]))
    settings = (target, 4, 20_000)
    exact = -np.asarray(parts._points(target, 4)) / 2.25
    for made in (
        parts.estimate(*settings),
        parts.estimate(*settings, own_noise=True),
        parts.plain_estimate(*settings),
    ):
        assert np.abs(np.asarray(made()).reshape(4, 2) - exact).max() < 0.012


@pytest.mark.parametrize("network", [None, {"kind": "lean"}, {"kind": "egnn"}])
def test_a_preset_with_another_network_is_timed(network):
    """Settings of the preset's network do not come along: the other has defaults of its own."""
    gradient = parts.network_gradient("dw4", 4, network)()
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(gradient))
    run, count = parts.inner_step("dw4", 4, 8, network)
    state, _ = run()
    assert int(state.step) == count


def test_measurements_take_turns_in_processes_of_their_own(monkeypatch):
    """There and back. One that cannot be made is told, and the others do not suffer."""
    dw4 = {"part": "estimate", "target": "dw4", "batch": 4, "num_samples": 8, "devices": 1}
    told, order, repeat = [], [], timing.Worker.repeat

    def seen(worker):
        order.append(worker.task["num_samples"])
        return repeat(worker)

    monkeypatch.setattr(timing.Worker, "repeat", seen)
    tasks = {"one": dw4, "no": dw4 | {"target": "nothing"}, "two": dw4 | {"num_samples": 16}}
    found = timing.in_turn(2, tasks, told.append)
    assert order == [8, 16, 16, 8]
    assert found["no"] is None and "estimate of nothing" in told[0] and len(told) == 1
    for label in ("one", "two"):
        assert found[label].seconds > 0 and found[label].gigabytes > 0.05
        assert len(found[label].each) == 2


def test_no_process_outlives_an_interrupt(monkeypatch):
    dw4 = {"part": "estimate", "target": "dw4", "batch": 4, "num_samples": 8, "devices": 1}
    started = []

    def interrupted(worker):
        started.append(worker.process)
        raise KeyboardInterrupt

    monkeypatch.setattr(timing.Worker, "repeat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        timing.in_turn(2, {"one": dw4}, quiet)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_process_that_dies_between_two_repetitions_is_told(monkeypatch):
    dw4 = {"part": "estimate", "target": "dw4", "batch": 4, "num_samples": 8, "devices": 1}
    repeat = timing.Worker.repeat

    def killed(worker):
        worker.process.kill()
        worker.process.wait()
        return repeat(worker)

    monkeypatch.setattr(timing.Worker, "repeat", killed)
    told = []
    assert timing.in_turn(2, {"one": dw4}, told.append) == {"one": None}
    assert "exit code -9" in told[0]


def test_a_ratio_is_that_of_the_rounds():
    """A machine that is ten times slower in one round has no part in it."""
    above = timing.Measured(3.0, [3.0, 30.0, 3.0], 1.0)
    below = timing.Measured(1.0, [1.0, 10.0, 1.5], 1.0)
    assert timing.ratio(above, below) == 3
    assert timing.ratio(above, None) is None


def test_what_cannot_be_measured_is_left_empty(monkeypatch, capsys):
    tasks = fake(monkeypatch)
    row = {}
    speed.against_plain("lj13", 1, True, quiet, row)
    # the plain formulation is timed on one device, as one would first write it
    assert row["torch_over_step"] is None and row["plain_over_estimate"] == 14
    assert row["one_device_over_step"] == 2 and row["egnn_over_network"] == 1
    steps = [task for task in tasks if task["part"] == "inner_step" and not task.get("torch")]
    assert [(t.get("devices", 1), t.get("cores")) for t in steps] == [(2, None), (1, None), (1, 1)]
    assert all(t["network"] == {"kind": "lean"} for t in steps)
    assert {t["batch"] for t in tasks if t["part"] == "sampling"} == {1000}
    found = {"cores": 2, "repeats": 1, "torch": True, "targets": {"lj13": row}}
    found["growth"] = {}
    speed.growth(1, quiet, found["growth"])
    assert found["growth"]["estimate, K"]["exponent"] == pytest.approx(1)
    assert json.loads(json.dumps(found))["targets"]["lj13"]["step"]
    tables.show(found)
    out = capsys.readouterr().out
    assert "how cost grows" in out and "one device ÷ all" in out and "1000" in out
    assert "exponent 1.00" in figures.growth(found["growth"])


def test_the_native_limit_is_read(monkeypatch, tmp_path):
    fake(monkeypatch, seconds=1e-6)
    program = tmp_path / "limit"
    line = "LJ-13 B=512 K=1024 threads=2 seconds=0.0500 (check 1)"
    program.write_text(f"#!{sys.executable}\nprint({line!r})\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    limits = speed.native_limits(str(program))
    found = {}
    speed.against_native(limits, 1, quiet, found)
    assert found["lj13"]["native"] == 0.05
    assert found["lj13"]["estimate_over_native"] == pytest.approx(512 * 1024e-6 / 0.05)
    program.write_text(f"#!{sys.executable}\nprint('hello')\n")
    with pytest.raises(UserError, match="expected lines like 'LJ-13 B=512"):
        speed.native_limits(str(program))
    with pytest.raises(UserError, match="expected a program that runs"):
        speed.native_limits(str(tmp_path / "absent"))


def test_unknown_targets_are_named():
    with pytest.raises(UserError, match="got nothing"):
        speed.run(("nothing",), 1, None, False, quiet)
    with pytest.raises(UserError, match="got none"):
        speed.run((), 1, None, False, quiet)


def test_a_wrong_native_program_is_told_before_anything_is_timed(monkeypatch, tmp_path):
    tasks = fake(monkeypatch)
    with pytest.raises(UserError, match="expected a program that runs"):
        speed.run(("dw4",), 1, str(tmp_path / "absent"), False, quiet)
    assert not tasks


def test_what_was_measured_before_an_interrupt_is_kept(monkeypatch, capsys):
    """Also of the target that was not finished; and the exit code is that of Ctrl-C."""
    fake(monkeypatch)
    rounds = speed.in_turn

    def interrupted(repeats, tasks, report):
        if "step" in tasks:
            raise KeyboardInterrupt
        return rounds(repeats, tasks, report)

    monkeypatch.setattr(speed, "in_turn", interrupted)
    with pytest.raises(SystemExit) as end:
        bench("speed", targets=("dw4,lj13",), repeats=1)
    assert end.value.code == 130
    out = capsys.readouterr().out
    assert "plain JAX ÷ ours" in out and "EGNN ÷ ours" in out and "inner step" not in out
    assert "dw4" in out and "lj13" not in out
    found = speed.run(("dw4",), 1, None, True, quiet)
    assert found["targets"]["dw4"]["estimate"] and "growth" not in found
    assert found["versions"]["jax"] == jax.__version__


def test_the_yardstick_computes_the_same_energies():
    """Energies and S_K of plain PyTorch beside ours: what is timed is the same mathematics."""
    torch = pytest.importorskip("torch")
    from demx.bench.yardstick import Yardstick

    for name in ("gmm40", "dw4", "lj13"):
        _, target = resolve.named_target(name, {})
        means = np.asarray(target.means) if name == "gmm40" else None
        x = np.array(parts._points(target, 5)) * (10.0 if name == "gmm40" else 1.5)
        found = -Yardstick(name, means).energy(torch.tensor(x)).numpy()
        want = np.asarray(jax.vmap(target.log_density)(x))
        usable = want > -1e3  # inside the linear core they differ on purpose
        constant = (want - found)[usable]  # the yardstick's mixture is not normalised
        np.testing.assert_allclose(constant, constant[0], atol=2e-3)


@pytest.mark.parametrize("name", [".", "missing/growth.svg"])
def test_a_plot_that_cannot_be_written_is_refused_at_once(name, tmp_path):
    from demx.commands.bench import bench

    with pytest.raises(UserError, match="expected a file in a directory that exists"):
        bench("speed", plot=str(tmp_path / name))
