"""Configuration and command: what a user can get wrong ends in one clear line and exit code 2."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from demx import api, cli, config, machine
from demx.errors import UserError
from demx.targets import TARGETS

PRESETS = [f.name for f in resources.files("demx.presets").iterdir() if f.name.endswith(".toml")]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build(name):
    method, target = name.removesuffix(".toml").split("-")
    assert target in TARGETS
    method = "hmc" if method == "any" else method
    built, full = api.resolve(target, method=method)
    config.build_method(method, built, full)
    given = config.preset(method, target)
    for section, values in given.items():
        for key, value in values.items():
            assert full[section][key] == value


def test_a_resolved_configuration_survives_toml():
    _, full = api.resolve("lj13")
    assert tomllib.loads(config.dumps(full)) == {
        k: ({a: (list(b) if isinstance(b, tuple) else b) for a, b in v.items()}
            if isinstance(v, dict) else v)
        for k, v in full.items()
    }  # fmt: skip


def test_set_values():
    found = config.parse_set(["a.b=3", "a.c=1e-3", "d.e=word", "d.f=[1, 2]", "g.h=true"])
    assert found == {"a": {"b": 3, "c": 1e-3}, "d": {"e": "word", "f": [1, 2]}, "g": {"h": True}}


def test_a_new_kind_starts_its_section_anew():
    _, full = api.resolve("gmm40", settings={"noise": {"kind": "linear", "sigma_max": 3}})
    assert full["noise"] == {"kind": "linear", "sigma_max": 3.0}


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"draws": {"num_sample": 4}}, "'draws.num_sample'; did you mean 'num_samples'"),
        ({"trainin": {"ema": 1}}, "unknown section .trainin. of method idem; did you mean"),
        ({"network": {"kind": "mpl"}}, "unknown network 'mpl'; did you mean 'mlp'"),
        ({"draws": {"num_samples": "many"}}, "draws.num_samples: expected int, got 'many'"),
        ({"draws": {"num_samples": True}}, "expected int, got True"),
        ({"noise": {"kind": "linear"}}, "missing setting 'noise.sigma_max'"),
        ({"estimator": {"wrap": ["cond"]}}, "unknown estimator wrapper 'cond'"),
    ],
)  # fmt: skip
def test_settings_that_are_refused(settings, match):
    with pytest.raises(UserError, match=match):
        api.resolve("dw4", settings=settings)


def test_networks_that_read_the_noise_need_to_be_told_it():
    for network in ({"kind": "relaxing", "softness": 0.0}, {"kind": "lean"}):
        changed = {"network": network, "precondition": {"kind": "plain"}}
        built, full = api.resolve("lj13", settings=changed)
        with pytest.raises(UserError, match=r"network: .* precondition plain does not give it"):
            config.build_method("idem", built, full)
    changed["network"] = {"kind": "lean", "softness": 0.0}
    built, full = api.resolve("lj13", settings=changed)
    config.build_method("idem", built, full)


def test_what_a_walk_makes_idle_is_refused():
    """lj13 walks: importance samples, and so their number, would do nothing."""
    for given in ({"draws": {"num_samples": 4}}, {"estimator": {"kind": "log_sum_exp"}}):
        with pytest.raises(UserError, match=f"{next(iter(given))}: without effect"):
            api.resolve("lj13", settings=given)
        _, full = api.resolve("lj13", settings={**given, "walk": None})
        assert "walk" not in full


def test_a_configuration_of_another_version_is_refused():
    """Also where only a setting is new: its default of today is not what was trained."""
    for method, name in (("idem", "stopping"), ("idem", "network.width"), ("hmc", "sampler.scale")):
        built, full = api.resolve("gmm40", method=method)
        config.build_method(method, built, full)
        section, _, setting = name.partition(".")
        _ = full[section].pop(setting) if setting else full.pop(section)
        with pytest.raises(UserError, match=f"no {name}: was it written by another version"):
            config.build_method(method, built, full)


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"training": {"batch_size": -4}}, "training: batch_size: expected at least 1, got -4"),
        (
            {"draws": {"num_samples": 0}, "walk": None},
            "draws: num_samples: expected at least 1, got 0",
        ),
        (
            {"draws": {"num_samples": 6}, "estimator": {"wrap": ["richardson"]}, "walk": None},
            "draws.num_samples: expected a multiple of 4 with richardson, got 6",
        ),
        (
            {"estimator": {"wrap": ["richardson", "conditional"]}, "walk": None},
            "x_0 is kept in every half",
        ),
        ({"noise": {"sigma_max": 0.01}}, "noise: sigma_max: expected more than sigma_min"),
        ({"buffer": {"capacity": -1}}, "buffer: capacity"),
        ({"clip": {"max_norm": -1.0}}, "clip: max_norm, max_sigmas: expected positive"),
    ],
)
def test_impossible_values_are_refused(settings, match):
    built, full = api.resolve("dw4", settings=settings)
    with pytest.raises(UserError, match=match):
        config.build_method("idem", built, full)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "demx", *map(str, arguments)], capture_output=True, text=True
    )


def refused(monkeypatch, capsys, *arguments):
    """The command in this process; returns its one line of error."""
    monkeypatch.setattr(sys, "argv", ["demx", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("demx: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    "arguments, match",
    [
        (["fit", "gmm41"], "unknown target 'gmm41'; did you mean 'gmm40'"),
        (["fit", "gmm40", "--method", "idm"], "unknown method 'idm'; did you mean 'idem'"),
        (["fit", "gmm40", "--budget", "soon"], "budget: expected a time like"),
        (["fit", "gmm40", "--set", "batch_size=3"], "--set: expected section.name=value"),
        (["fit", "gmm40", "--set", "training.batch_size=-3"], "expected at least 1, got -3"),
        (["fit", "gmm40", "--set", "target.scales=2"], "unknown setting 'target.scales'"),
        (["fit", "many_well", "--set", "target.dim=3"], "expected an even number"),
        (
            ["fit", "gmm40", "--warm-start", "nowhere.npz"],
            "nowhere.npz: expected a file of samples",
        ),
        (["fit", "gmm40", "--scale", "-1"], "scale: expected a positive number"),
        (["sample", "nowhere"], "nowhere: not a run directory"),
        (["evaluate", "nowhere"], "nowhere: not a run directory"),
        (["evaluate", "gmm40.v2"], "gmm40.v2: not a run directory, and not a file of samples"),
        (["evaluate", "a", "--mcmc", "--mcmc-calls", "10m"], "such as 2e7, got '10m'"),
        (["evaluate", "a", "--mcmc", "--mcmc-calls", "0"], "--mcmc-calls: expected a number of"),
        (["evaluate", "a", "--mcmc-calls", "2e6"], "--mcmc-calls: only with --mcmc"),
        (["sample", "a", "--correct-steps", "9"], "--correct-steps: only with --correct mala"),
        (
            ["evaluate", "x.npy", "--target", "gmm40", "--repeats", "10"],
            "--repeats: only for a run",
        ),
        (["evaluate", "x.npy", "--correct-steps", "300"], "--correct-steps, --repeats: only for"),
        (["report", "nowhere"], "nowhere: not a run directory"),
    ],
)
def test_mistakes_end_in_one_line(arguments, match, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("x.npy").touch()
    assert match in refused(monkeypatch, capsys, *arguments)


def test_wrong_flags_and_no_traceback(tmp_path):
    for arguments in (["fit"], ["fit", "gmm40", "--sed", "3"], ["train", "gmm40"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_help_is_complete_and_starts_without_jax():
    done = run("--help")
    assert done.returncode == 0
    for command in ("fit", "sample", "evaluate", "report", "reference", "list"):
        assert command in done.stdout
    code = "import sys, demx.cli; assert 'jax' not in sys.modules, 'jax'"
    subprocess.run([sys.executable, "-c", code], check=True)


SMALL = [
    "--set=moves=none", "--set=walk=none",
    "--set=draws.num_samples=8", "--set=network.width=8", "--set=training.outer_steps=2",
    "--set=training.inner_steps=2", "--set=training.batch_size=8", "--set=grid.num_steps=5",
    "--set=evaluation.n=50",
]  # fmt: skip


@pytest.mark.parametrize("target", ["gmm40", "dw4"])
def test_the_whole_path(target, tmp_path, monkeypatch, capsys):
    """fit, sample, evaluate, report: as a user types them."""
    import numpy as np

    directory = tmp_path / "run"

    def demx(*arguments):
        monkeypatch.setattr(sys, "argv", ["demx", *map(str, arguments)])
        cli.main()
        return capsys.readouterr().out

    assert "2 of 2 outer loops" in demx("fit", target, "--directory", directory, "--quiet", *SMALL)
    out = tmp_path / "out" / "samples.npz"
    demx("sample", directory, "-n", 30, "-o", out)
    with np.load(out, allow_pickle=False) as data:
        assert len(data["x"]) == len(data["energy"]) == 30
        assert "log_weight" not in data
    if target == "gmm40":
        said = demx("sample", directory, "-n", 30, "--correct", "mala", "--correct-steps", 4)
        # 4 gradient steps and the start, 30 slopes for a step size, 30 energies for the file
        assert "acceptance of the moves" in said and f"{30 * 5 + 30 + 30} energy calls" in said
    small = ("-n", 40, "--repeats", 3, "--likelihood-n", 100)
    found = json.loads(demx("evaluate", directory, *small, "--json"))
    assert found["target"] == target and found["n"] == 40
    assert found["energy_calls"] == 2 * 2 * 8 * 8
    for metric in found["metrics"].values():
        assert {"value", "standard_error", "floor"} <= set(metric)
    assert {"w2", "energy_w2", "ess", "psis_k", "nll", "log_z_is"} <= set(found["metrics"])
    assert ("w2_aligned" in found["metrics"]) == (target == "dw4")
    assert found["verdict"]
    if target == "gmm40":
        assert "energy_median" in demx("evaluate", directory, *small)
    demx("report", directory, "-n", 40)
    page = (directory / "report.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") >= 3
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "")
    assert "src=" not in page and "@import" not in page


def test_weighted_samples(tmp_path, monkeypatch):
    import numpy as np

    fitted = api.fit("gmm40", progress=False, settings=config.parse_set([s[6:] for s in SMALL]))
    drawn = fitted.sample(20, weights=True)
    assert drawn.log_weight.shape == drawn.log_prob.shape == (20,)
    z = fitted.log_z(50)
    assert np.isfinite(z.value) and 0 < z.ess <= 1
    with pytest.raises(UserError, match=r"expected shape \(n, 2\), got \(3, 5\)"):
        fitted.log_prob(np.zeros((3, 5)))
    with pytest.raises(UserError, match="n: expected a whole number of at least 1"):
        fitted.sample(0)


def test_list_names_everything(capsys):
    cli.list_()
    out = capsys.readouterr().out
    for name in [*TARGETS, "idem", "pdem", "log_sum_exp", "egnn", "prioritised"]:
        assert name in out


def test_energy_functions_need_a_space():
    with pytest.raises(UserError, match="needs one of dim"):
        api.fit(lambda x: (x**2).sum())
    with pytest.raises(ValueError, match="expected a scalar"):
        api.fit(lambda x: x, dim=2)


def test_optional_sections_can_be_left_out():
    assert config.parse_set(["moves=none", "draws.num_samples=8"]) == {
        "moves": None,
        "draws": {"num_samples": 8},
    }
    _, full = api.resolve("lj13")
    assert "moves" in full and "strays" in full
    _, without = api.resolve("lj13", settings={"moves": None, "strays": None})
    assert "moves" not in without and "strays" not in without


def test_the_machine_is_asked_not_guessed(monkeypatch, tmp_path):
    monkeypatch.setenv("DEMX_CACHE", str(tmp_path))
    assert machine.cache_directory() == tmp_path
    monkeypatch.delenv("DEMX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_directory() == tmp_path / "demx"
    assert 1 <= machine.cores() <= os.cpu_count()
