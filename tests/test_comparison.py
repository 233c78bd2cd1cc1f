"""Several methods on one target: each in its own processes, resumable, on one page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from demx import cli, comparison, resolve
from demx.errors import UserError
from demx.report import comparison as page

OPTIONS = dict(budget="30s", seed=0, n=200, repeats=2)


def written(rows, path):
    opened = resolve.open_target("gmm40", {}, look=False)
    return page.write("gmm40", opened, rows, path, settings={}).read_text()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("compare")
    return directory, comparison.compare("gmm40", ["importance"], directory, **OPTIONS)


def test_metrics_costs_and_floors_stand_side_by_side(compared):
    _, rows = compared
    header, lines = page.cells(rows)
    assert header == ["", "floor", "importance"]
    table = {line[0]: line[1:] for line in lines}
    assert table["energy calls, training"][1] == f"{20 * 4096:,}"  # steps of so many draws
    floor, value = (float(cell.split()[0]) for cell in table["w2"])
    assert floor < value  # a single normal for 40 modes
    assert all(row.peak_gigabytes > 0.1 and row.seconds > 1 for row in rows)


def test_the_best_is_named_first():
    """By the share of metrics at the floor, then by the fewest calls; a failure has no place."""

    def row(method, words, calls):
        number = {"value": 1.0, "standard_error": 0.1, "floor": None}
        metrics = {str(i): number | {"verdict": word} for i, word in enumerate(words)}
        told = {"metrics": metrics, "energy_calls": calls, "evaluation_energy_calls": 0,
                "bad_samples": 0}  # fmt: skip
        return comparison.Row(method, told, 1.0, 1.0, None)

    rows = [
        row("dear", ["at the floor", "all", "says little"], 2e6),
        row("poor", ["above", "all", ""], 10),
        row("cheap", ["as reference", "all"], 1000),
        comparison.Row("lost", {}, 1.0, 1.0, None, "killed"),
    ]
    _, lines = page.cells([row("marked", ["as reference", "above", "at the floor", "all"], 1)])
    assert [line[2].endswith("*") for line in lines[:4]] == [True, False, True, True]
    said = page.summary(rows)
    assert said.endswith(
        ": cheap 2 of 2, 1k energy calls; dear 2 of 2, 2M energy calls; poor 1 of 2, "
        "10 energy calls."
    )
    assert "no reference" in page.summary([row("any", [""], 1)])


def test_a_comparison_goes_on_where_it_was(compared):
    directory, rows = compared
    told = []
    again = comparison.compare("gmm40", ["importance"], directory, **OPTIONS, report=told.append)
    assert again == rows and told == []
    with pytest.raises(UserError, match="holds another comparison"):
        comparison.compare("gmm40", ["importance"], directory, **OPTIONS | {"n": 300})


def test_what_a_method_costs_is_that_of_all_its_processes(tmp_path, monkeypatch):
    """Seconds add up, also of one that was interrupted; the largest memory counts."""
    log, cost = tmp_path / "log", tmp_path / "cost.json"
    comparison._run(["--version"], log, cost)
    first = json.loads(cost.read_text())
    assert first["seconds"] > 0 and first["peak_gigabytes"] > 0.01
    wait, asked = comparison.os.wait4, []

    def interrupted(*about):
        asked.append(about)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return wait(*about)

    monkeypatch.setattr(comparison.os, "wait4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        comparison._run(["--version"], log, cost)
    second = json.loads(cost.read_text())
    assert second["seconds"] > first["seconds"]
    assert second["peak_gigabytes"] >= first["peak_gigabytes"]
    cost.write_text(json.dumps({"seconds": 1000.0, "peak_gigabytes": 99.0}))
    comparison._run(["--version"], log, cost)
    third = json.loads(cost.read_text())
    assert third["seconds"] > 1000 and third["peak_gigabytes"] == 99


def test_a_method_that_fails_does_not_stop_the_others(compared, tmp_path):
    (tmp_path / "smc").write_text("in the way")
    rows = comparison.compare("gmm40", ["smc"], tmp_path, **OPTIONS)
    assert "expected a directory, found a file" in rows[0].error
    text = written([*rows, compared[1][0]], tmp_path / "compare.html")
    assert "smc has no result" in text and "importance" in text


def test_a_method_without_a_figure_leaves_the_others_theirs(compared, tmp_path):
    """Weights that are all zero cannot be resampled; what an error left behind is not shown."""
    row = compared[1][0]
    zero = tmp_path / "zero.npz"
    np.savez(zero, x=np.zeros((9, 2), np.float32), log_weight=np.full(9, -np.inf, np.float32))
    rows = [row._replace(method="ais", samples=zero), row,
            row._replace(method="smc", samples=zero, error="stopped")]  # fmt: skip
    text = written(rows, tmp_path / "compare.html")
    assert text.count("<svg") == 1 and text.count("no figure") == 1
    assert "ais: no figure, all weights are zero" in text


def test_the_page_is_whole_and_loads_nothing(compared):
    directory, rows = compared
    text = written(rows, directory / "compare.html")
    assert text.count("<svg") == 1 and "at the floor" in text
    assert not re.search(r"(src|href)=.?https?:", text)
    kept = json.loads((directory / "importance" / "comparison.json").read_text())
    assert kept["asked"]["target"] == "gmm40"


def test_methods_are_checked_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="unknown method 'hcm'"):
        comparison.compare("gmm40", ["smc", "hcm"], tmp_path / "x", **OPTIONS)
    with pytest.raises(UserError, match="expected each once"):
        comparison.compare("gmm40", ["smc", "smc"], tmp_path / "x", **OPTIONS)
    with pytest.raises(UserError, match=r"methods: expected at least one, .*got none"):
        comparison.compare("gmm40", [], tmp_path / "x", **OPTIONS)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "words, expected",
    [
        ("double_well", "missing setting 'target.num_particles'"),
        ("double_well --set target.particles=3", "unknown setting 'target.particles'"),
        ("double_well --set sampler.num_chains=3", "settings of the target here, got sampler"),
        ("gmm40 --dim 3", "this target has its space"),
    ],
)
def test_a_target_is_opened_before_anything_runs(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "_run", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(UserError, match=expected):
        cli.call(["compare", *words.split(), "--methods", "hmc,smc"])
    assert not [*tmp_path.iterdir()]


def test_settings_of_the_target_reach_every_method_and_the_page(tmp_path, monkeypatch, capsys):
    """A run knows them when it has been fitted; another comparison does not take its place."""
    monkeypatch.chdir(tmp_path)
    told = {"metrics": {}, "energy_calls": 1, "evaluation_energy_calls": 1, "bad_samples": 0}
    asked = []

    def run(command, *_):
        asked.append(command)
        if command[0] == "sample":
            samples = Path(command[1]) / "samples.npz"
            samples.parent.mkdir(parents=True)
            np.savez(samples, x=np.ones((9, 3, 2), np.float32) * np.arange(3)[:, None])
        return comparison._Ended(0, json.dumps(told | {"verdict": ["Good."]}), "")

    monkeypatch.setattr(comparison, "_run", run)
    words = ["compare", "double_well", "--methods", "hmc,smc"]
    three = ["--set", "target.num_particles=3"]
    cli.call([*words, *three])
    fits = [command for command in asked if command[0] == "fit"]
    assert [command[3] for command in fits] == ["hmc", "smc"]
    assert all(command[-2:] == three for command in fits)
    text = Path("runs/compare-double_well/compare.html").read_text()
    assert "smc: 9 samples" in text  # whose energies are those of three particles
    assert f"demx {' '.join(words + three)}" in text
    with pytest.raises(UserError, match="holds another comparison"):
        cli.call([*words, "--set", "target.num_particles=4"])
