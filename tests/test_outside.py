"""An energy in a file, FILE.py:NAME: from the command line to samples, and what is refused."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import api, cli, resolve, source
from demx.errors import UserError

FILE = '''"""Energies of a test.

More about them."""

import jax.numpy as jnp
import numpy as np

from demx.space import Euclidean, MeanFree
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import gaussian_mixture


def energy(x):
    """A slanted bowl."""
    return 0.5 * jnp.sum((x - 1.0) ** 2 / jnp.arange(1.0, 3.0))


def cluster(x):
    return jnp.sum((jnp.sum((x[:, None] - x[None]) ** 2, axis=-1) - 2.0) ** 2)


def salt(x):
    """Two heavy particles and two light ones."""
    return cluster(x) + jnp.sum(jnp.asarray([2.0, 2.0, 1.0, 1.0])[:, None] * x**2)


def made(width: float = 1.0):
    """A bowl of some width."""
    return FunctionTarget(lambda x: 0.5 * jnp.sum(x**2) / width**2, Euclidean(2))


ready = made(2.0)


def by_numpy(x):
    return 0.5 * np.sum(np.asarray(x) ** 2)


def vector(x):
    return x**2


def nothing(x):
    pass


def raises(x):
    raise KeyError("no such parameter")


def no_target():
    return 3


def exact():
    return gaussian_mixture(num_modes=2, dim=2)


number = 4.0
'''
SMALL = [
    "--method=importance", "--set=sampler.num_samples=64", "--set=sampler.outer_steps=2",
    "--set=evaluation.every=0", "--scale=2", "--quiet",
]  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEMX_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["demx", *map(str, arguments)])
        cli.main()
        return capsys.readouterr()

    return call


def test_the_whole_path_of_a_file(place, command):
    """fit, sample, evaluate, report; then the energy changes, then its file goes."""
    options = ["--dim", 2, *SMALL]
    said = command("fit", "mine.py:energy", *options)
    run = place / "runs" / "mine-energy-importance-seed0"
    assert "2 of 2 outer loops" in said.out
    config = (run / "config.toml").read_text()
    assert f'source = "{place / "mine.py"}:energy"' in config and "dim = 2" in config
    assert "2 of 2" in command("fit", "mine.py:energy", *options).out  # goes on, and has ended
    command("sample", run, "-n", 200, "-o", "drawn.npz")
    small = ("-n", 40, "--repeats", 2, "--likelihood", "none", "--json")
    found = json.loads(command("evaluate", run, *small).out)
    assert found["target"] == "mine:energy" and "energy_mean" in found["metrics"]
    command("report", run, "-n", 40)
    page = (run / "report.html").read_text()
    assert "mine:energy" in page and "for the figures, 8 to open the run." in page
    judged = command("evaluate", "drawn.npz", "--target", "mine.py:energy", "--dim", 2, *small[:2])
    assert "energy_mean" in judged.out
    (place / "mine.py").write_text(FILE.replace("x - 1.0", "x - 1.1"))
    with pytest.raises(UserError, match="is not the energy this run was trained on"):
        api.load(run)
    (place / "mine.py").unlink()
    with pytest.raises(UserError, match=r"mine.py, which is not there any more; put it back"):
        api.load(run)


def test_species_on_the_command_line(place, command, capsys):
    """Without them the energy is refused, with advice that can be followed; runs remember them."""
    space = ["--shape", "4,3", "--symmetry", "particles"]
    with pytest.raises(SystemExit):
        command("fit", "mine.py:salt", *space, *SMALL)
    assert "species=(0, 0, 1, …) or --species 0,0,1,…" in capsys.readouterr().err
    command("fit", "mine.py:salt", *space, "--species", "0,0,1,1", *SMALL)
    run = place / "runs" / "mine-salt-importance-seed0"
    assert api.load(run).target.space.species == (0, 0, 1, 1)
    command("sample", run, "-n", 40, "-o", "drawn.npz")
    told = command("evaluate", "drawn.npz", "--target", "mine.py:salt", *space, "-n", 20,
                   "--species", "0,0,1,1")  # fmt: skip
    assert "energy_mean" in told.out


def test_docstrings_are_shown_once(place, command, capsys):
    with pytest.raises(SystemExit):
        command("fit", "mine.py:energy")  # no space is named
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["mine.py: Energies of a test.", "energy: A slanted bowl."]
    assert source.headlines(source.parse("mine.py:ready")) == ["mine.py: Energies of a test."]


def test_defaults_are_shown(place):
    """Without running the file; types are left out."""
    (place / "more.py").write_text(
        "raise SystemExit\n"
        "def energy(x, stiffness=2.0): return stiffness * (x * x).sum()\n"
        "def made(width: float = 1.0, *rest: int, dim: int = 2) -> int:\n    'A bowl.'\n"
        "def plain(x: float): pass\n"
    )
    told = [source.headlines(source.parse(f"more.py:{name}")) for name in ("energy", "made")]
    assert told == [["energy(x, stiffness=2.0)"], ["made(width=1.0, *rest, dim=2): A bowl."]]
    assert source.headlines(source.parse("more.py:plain")) == []
    mine = source.headlines(source.parse("mine.py:made"))
    assert mine[1] == "made(width=1.0): A bowl of some width."


@pytest.mark.parametrize(
    "name, options, shape",
    [
        ("energy", {"dim": 2}, (2,)),
        ("cluster", {"particles": (4, 3)}, (4, 3)),
        ("made", {"settings": {"target": {"width": 3.0}}}, (2,)),
        ("ready", {}, (2,)),
    ],
)
def test_what_a_name_can_be(place, name, options, shape):
    target, config = api.resolve(f"mine.py:{name}", scale=1.0, **options)
    assert target.space.shape == shape and config["target"] == f"mine:{name}"
    assert len(config["fingerprint"]) == 9
    if name == "made":
        assert config["target_settings"] == {"width": 3.0}


@pytest.mark.parametrize(
    "arguments, match",
    [
        (["mine.py:energy"], "needs one of dim=…"),
        (["mine.py"], "mine.py: expected FILE.py:NAME"),
        (["yours.py:energy", "--dim", 2], "yours.py: expected a Python file"),
        (["mine.py:enrgy", "--dim", 2], "no 'enrgy' in it; did you mean 'energy'?"),
        (["mine.py:number", "--dim", 2], "expected an energy function or a Target, got 4.0"),
        (["mine.py:no_target"], "should return a Target"),
        (["mine.py:ready", "--dim", 2], "this target has its space"),
        (["mine.py:made", "--set=target.depth=2"], "unknown setting 'target.depth'"),
        (["mine.py:energy", "--dim", 2, "--set=target.depth=2"], "mine:energy has no settings"),
        (["mine.py:by_numpy", "--dim", 2], "wrap it with demx.targets.black_box"),
        (["mine.py:vector", "--dim", 2], "expected a scalar for one x of shape (2,), got shape"),
        (["mine.py:nothing", "--dim", 2], "expected a scalar for one x of shape (2,), got None"),
        (["mine.py:raises", "--dim", 2], "KeyError in line 48: 'no such parameter'"),
        (["mine.py:energy", "--shape", "4,3"], "with --symmetry particles"),
        (["mine.py:energy", "--shape", "4"], "--shape 4: one number; say --dim 4"),
        (["mine.py:energy", "--shape", "4,x"], "--shape: expected whole numbers"),
        (["mine.py:energy", "--symmetry", "particles"], "needs --shape n,dimension"),
        (["mine.py:salt", "--species", "0,1"], "--species: needs --shape n,dimension and --symm"),
        (
            ["mine.py:salt", "--shape", "4,3", "--symmetry", "particles", "--species", "0,1"],
            "--species: expected one number for each of 4 particles, got 2",
        ),
        (
            ["mine.py:salt", "--shape", "4,3", "--symmetry", "particles", "--species", "a"],
            "--species: expected whole numbers such as 0,0,1,1,1, got 'a'",
        ),
        (["broken.py:energy", "--dim", 2], "SyntaxError"),
        (["stops.py:energy", "--dim", 2], "stops.py: ZeroDivisionError in line 1: division"),
    ],
)
def test_what_is_refused_in_one_line(arguments, match, place, command, capsys):
    (place / "broken.py").write_text("def energy(x:\n")
    (place / "stops.py").write_text("def ratio(): return 1 / 0\nratio()\n")
    with pytest.raises(SystemExit) as stop:
        command("fit", *arguments, "--quiet")
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("demx: ") and said.count("\n") == 1 and match in said


def test_a_reference_of_a_file_is_found_again(place):
    """Made for the file's energy, used for its runs and for samples of that target."""
    sets, path = demx.reference("mine.py:exact", n=100)
    assert path.parent.name == "references" and path.name.startswith("mine-exact")
    x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    found = demx.assess("mine.py:exact", x, n=50, likelihood="none")
    assert "w2" in found.metrics and sets.test.shape == (100, 2)


def test_a_comparison_of_a_file(place, monkeypatch):
    """Processes of their own are told the space."""
    from demx import comparison

    seen = []
    ended = comparison._Ended(1, "", "stopped here")
    monkeypatch.setattr(comparison, "_run", lambda command, *files: seen.append(command) or ended)
    from demx.commands.space import options

    space = options(None, "4,3", "particles", "0,0,1,1", 2.0)
    comparison.compare(
        "mine.py:cluster", ["hmc"], place / "all", budget=None, seed=0, n=10, repeats=1, space=space
    )
    assert seen[0][:2] == ["fit", "mine.py:cluster"]
    assert seen[0][-8:] == [
        "--shape", "4,3", "--species", "0,0,1,1", "--scale", "2.0", "--symmetry", "particles",
    ]  # fmt: skip


def test_a_file_may_import_its_neighbours(place):
    (place / "beside.py").write_text("WIDTH = 2.0\n")
    (place / "imports.py").write_text(
        "import beside\n\n\ndef energy(x):\n    return (x**2).sum() / beside.WIDTH\n"
    )
    target, _ = api.resolve("imports.py:energy", dim=3, scale=1.0)
    assert float(target.log_density(jnp.ones(3))) == pytest.approx(-1.5)


@pytest.mark.parametrize(
    "module, match",
    [
        (
            "openmm",
            r"in line 1: .*openmm.*; pip install '\.\[openmm\]' in demx's",
        ),
        ("nowhere_at_all", "No module named 'nowhere_at_all'; install it beside demx"),
        ("ase.nowhere", "No module named 'ase.nowhere'; ase is installed: is the name right?"),
    ],
)
def test_a_module_that_is_missing_in_the_file_is_told_how_to_get(module, match, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "openmm", None)
    (place / "needing.py").write_text(f"import {module}\n\n\ndef energy(x):\n    return x\n")
    with pytest.raises(UserError, match=match):
        source.load(source.parse(str(place / "needing.py") + ":energy"), {})


def test_the_command_of_the_readme(place):
    """In a process of its own: no traceback, exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "demx", "fit", "mine.py:vector", "--dim", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_page_of_a_comparison_of_a_file(place):
    """Energies and samples of a function that only its file and its space make a target of."""
    from demx.comparison import Row
    from demx.report import comparison as page

    x = np.random.default_rng(0).normal(size=(50, 4, 3)).astype(np.float32)
    np.savez(place / "x.npz", x=x - x.mean(axis=1, keepdims=True))
    evaluation = {
        "metrics": {}, "verdict": [], "energy_calls": 7, "evaluation_energy_calls": 0,
        "bad_samples": 0,
    }  # fmt: skip
    row = Row("hmc", evaluation, 1.0, 0.1, place / "x.npz")
    opened = resolve.open_target("mine.py:cluster", {}, look=False, particles=(4, 3))
    given = ["--shape", "4,3", "--symmetry", "particles"]
    path = page.write(
        "mine.py:cluster", opened, [row], place / "compare.html", settings={}, given=given
    )
    assert "hmc: 50 samples" in path.read_text()
    assert f"mine.py:cluster --methods hmc {' '.join(given)}<" in path.read_text()
