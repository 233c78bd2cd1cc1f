"""The speed benchmark: its parts compute what they claim, and it survives what cannot be run."""

import json
import stat
import sys

import jax
import numpy as np
import pytest

from demx.bench import parts, speed
from demx.errors import UserError
from demx.report import figures
from demx.report import speed as tables
from demx.targets.gaussian_mixture import GaussianMixture


def quiet(text):
    pass


def fake(monkeypatch, seconds=0.5):
    """Measurements that cost nothing; a task named torch fails."""

    def measure(repeats, **task):
        if task.get("torch"):
            raise speed.NotMeasured("killed")
        size = task["num_samples"] * task["batch"]
        return speed.Measured(seconds * size, 1.0)

    monkeypatch.setattr(speed, "measure", measure)


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


def test_a_measurement_in_a_process_of_its_own():
    found = speed.measure(2, part="estimate", target="dw4", batch=4, num_samples=8, devices=1)
    assert found.seconds > 0 and found.gigabytes > 0.05
    with pytest.raises(speed.NotMeasured, match="estimate of nothing"):
        speed.measure(1, part="estimate", target="nothing", batch=4, num_samples=8)


def test_what_cannot_be_measured_is_left_empty(monkeypatch, capsys):
    fake(monkeypatch)
    row = speed.against_plain("lj13", 1, True, quiet)
    assert row["torch_over_step"] is None and row["plain_over_estimate"] == 1
    found = {"cores": 2, "repeats": 1, "torch": True, "targets": {"lj13": row}}
    found["growth"] = speed.growth(1, quiet)
    assert found["growth"]["estimate, K"]["exponent"] == pytest.approx(1)
    assert json.loads(json.dumps(found))["targets"]["lj13"]["step"]
    tables.show(found)
    assert "how cost grows" in capsys.readouterr().out
    assert "exponent 1.00" in figures.growth(found["growth"])


def test_the_native_limit_is_read(monkeypatch, tmp_path):
    fake(monkeypatch, seconds=1e-6)
    program = tmp_path / "limit"
    line = "LJ-13 B=512 K=1024 threads=2 seconds=0.0500 (check 1)"
    program.write_text(f"#!{sys.executable}\nprint({line!r})\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    found = speed.native(str(program), 1, quiet)
    assert found["lj13"]["native"] == 0.05
    assert found["lj13"]["estimate_over_native"] == pytest.approx(512 * 1024e-6 / 0.05)
    program.write_text(f"#!{sys.executable}\nprint('hello')\n")
    with pytest.raises(UserError, match="expected lines like 'LJ-13 B=512"):
        speed.native(str(program), 1, quiet)
    with pytest.raises(UserError, match="could not be run"):
        speed.native(str(tmp_path / "absent"), 1, quiet)


def test_unknown_targets_are_named():
    with pytest.raises(UserError, match="got nothing"):
        speed.run(("nothing",), 1, None, False, quiet)
