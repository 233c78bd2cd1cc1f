"""Points to begin from: chains start where they were told, the same command resumes."""

import dataclasses
import sys

import ase
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.calculators.lj import LennardJones

import demx
from demx import cli, devices, resolve
from demx.beginning import beginning, known, width
from demx.config import build_method
from demx.errors import UserError
from demx.evaluate.equilibrium import HEATING, Equilibrium, Sampler
from demx.methods import METHODS
from demx.report import tables
from demx.ruler import reference
from demx.space import Euclidean, MeanFree
from demx.store import Store
from demx.targets.atomistic import from_atoms
from demx.targets.function import FunctionTarget

CHAINS = [name for name, entry in METHODS.items() if entry.warm_start == "chains"]
SHORT = {
    "sampler": {"num_chains": 5, "length": 2, "outer_steps": 2, "thin": 1},
    "evaluation": {"every": 0},
}


def bowl(x):
    """Particles held together; none may be further than 9 from the centre."""
    far = jnp.max(jnp.abs(x)) > 9
    return jnp.where(far, jnp.inf, 0.5 * jnp.sum(x**2))


@pytest.fixture
def cluster():
    return FunctionTarget(bowl, MeanFree(3, 2))


@pytest.fixture
def rows(rng):
    return rng.normal(size=(3, 3, 2)).astype(np.float32)


def positions(state):
    """(C, dof) of chains; of tempering (C, rungs, dof)."""
    return state.chains.position if hasattr(state, "chains") else state.walker.position


@pytest.mark.parametrize("method", CHAINS)
def test_chains_begin_at_the_rows_in_turn(method, cluster, rows, key):
    """Rows 0, 1, 2, 0, 1, centred and otherwise as they are; one energy call for each."""
    target, full = resolve.resolve(cluster, method=method, warm_start=rows, settings=SHORT)
    made = build_method(method, target, full, beginning(method, target, rows))
    found = positions(made.init(key))
    want = target.space.project(jnp.asarray(rows))[jnp.array([0, 1, 2, 0, 1])]
    for rung in np.moveaxis(found, 1, 0) if found.ndim == 3 else [found]:
        x = jax.vmap(target.space.configuration)(jnp.asarray(rung))
        np.testing.assert_allclose(x, want, atol=1e-5)
    # no probe: three rows looked at, five chains begun, and what tells the energy apart
    assert full["probe_calls"] == 3 + resolve.FINGERPRINT
    assert made.calls_at_init == 5 + full["probe_calls"]
    assert full["sampler"]["scale"] == width(target, rows)


def test_more_rows_than_chains_are_not_looked_at(cluster, rows):
    """Of 8 rows only the first five are asked for their energies."""
    many = np.concatenate([rows, rows, 100 * rows[:2]])
    _, full = resolve.resolve(cluster, method="hmc", warm_start=many, settings=SHORT)
    assert full["probe_calls"] == 5 + resolve.FINGERPRINT


def test_the_width_of_particles_is_known(rows):
    """The root mean square over dof = 2·(3 - 1); nothing can be said of R^d, or of one place."""
    space = MeanFree(3, 2)
    x = np.array([[[1.0, 0], [0, 0], [-1, 0]]])
    assert width(FunctionTarget(bowl, space), x) == pytest.approx(0.71)
    assert width(FunctionTarget(bowl, space), 0 * x) is None
    assert width(FunctionTarget(bowl, Euclidean(6)), rows.reshape(3, 6)) is None


@pytest.mark.parametrize("method", ["hmc", "tempering"])
def test_a_run_goes_on_as_if_undisturbed(method, tmp_path, rows):
    """Interrupted after one of two steps; the whole run ends the same, and no other resumes it."""

    def run(directory, outer=None, points=rows):
        budget = None if outer is None else f"{outer}calls"
        return demx.fit(
            "double_well", method=method, warm_start=points, directory=directory, budget=budget,
            progress=False, scale=0.3,
            settings=SHORT | {"target": {"num_particles": 3, "dim": 2}},
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    calls = whole.method.calls_at_init + whole.method.calls_per_step
    assert run(tmp_path / "parts", calls).progress.step == 1
    assert run(tmp_path / "parts").progress.step == 2
    one, other = (Store(tmp_path / d).checkpoint_file.read_bytes() for d in ("whole", "parts"))
    assert one.partition(b"\n")[2] == other.partition(b"\n")[2]
    with pytest.raises(UserError, match=r"another configuration \(warm_start"):
        run(tmp_path / "parts", points=rows + 1)
    again = demx.load(tmp_path / "parts").sample(5)
    np.testing.assert_array_equal(again.x, whole.sample(5).x)


def test_starts_that_are_refused(cluster, rows):
    def begin(points, method="hmc", target=cluster):
        resolve.resolve(target, method=method, warm_start=points, settings=SHORT)

    with pytest.raises(UserError, match=r"expected samples of shape \(n, 3, 2\), found \(3, 4\)"):
        begin(np.zeros((3, 4)))
    with pytest.raises(UserError, match="warm start: expected finite numbers"):
        begin(np.where(rows > 0, np.nan, rows))
    wild = rows.copy()
    wild[[0, 2]] *= 100
    with pytest.raises(UserError, match=r"found 2 of 3 without \(rows 0, 2, counted from 0\)"):
        begin(wild)
    with pytest.raises(UserError, match=r"method smc has no use for points.*nuts, tempering"):
        begin(rows, "smc")


@pytest.fixture
def dimer(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)
    atoms = ase.Atoms("Ar2", positions=[[0, 0, 0], [4.0, 0, 0]])
    calculator = LennardJones(sigma=3.4, epsilon=0.0104, rc=1e3, smooth=False)
    return from_atoms(atoms, calculator, temperature=40.0, trap=0.01)


def test_atoms_are_where_chains_begin(dimer):
    """By default for chains, for nothing else; a start of one's own, or none, replaces it."""
    _, full = resolve.resolve(dimer, method="hmc", settings=SHORT)
    assert full["warm_start"][0] == [1, 2, 3] and full["sampler"]["scale"] == pytest.approx(1.6)
    sampler = demx.fit(dimer, method="hmc", settings=SHORT, progress=False)
    assert dimer.calls == full["probe_calls"] + sampler.progress.energy_calls
    assert beginning("idem", dimer, None) is None and beginning("smc", dimer, None) is None
    mine = np.ones((2, 2, 3), np.float32)
    np.testing.assert_array_equal(beginning("hmc", dimer, mine), mine)
    assert known(dataclasses.replace(dimer, start=None)) is None


def test_a_reference_begins_at_points_and_says_so(cluster, rows, key, capsys):
    """Half of the ensembles at the points, half heated; the calls are counted, the words kept."""
    sizes = dict(num_chains=8, max_rungs=2, num_leapfrog=2, beta_min=0.5)
    sampler = Sampler(cluster, Equilibrium(**sizes), key, rows)
    want = jax.vmap(cluster.space.coordinates)(cluster.space.project(jnp.asarray(rows)))
    near, far = np.split(np.asarray(sampler.chains.position[:, 0]), 2)
    np.testing.assert_allclose(near, want[np.array([0, 1, 2, 0])], atol=1e-5)
    assert (np.abs(far - want[np.array([1, 2, 0, 1])]).max(axis=1) > 0.1).all()
    assert sampler.energy_calls == 4 + 4 * HEATING * 2 + 8
    exact = demx.config.build_target("gmm40", {})
    with pytest.raises(UserError, match="this target draws exact samples"):
        reference(exact, warm_start=np.zeros((3, 2)))
    with pytest.raises(UserError, match="start: expected points of finite energy"):
        reference(cluster, warm_start=100 * rows, **sizes)
    made, _ = reference(cluster, n=100, warm_start=rows, **sizes)
    start = made.provenance["start"]
    assert start["compact"] == "given points" and start["points"][0] == [3, 3, 2]
    assert start["dispersed"] == "given points after 100 moves at β = 0.5"
    tables.show_reference("cluster", made, None)
    assert "starts: given points, and given points after 100" in capsys.readouterr().out


def test_the_commands_take_a_file(tmp_path, monkeypatch, capsys, rows):
    """`demx fit --warm-start` of chains: flat rows of an npz are understood, and remembered."""
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", x=rows.reshape(3, 6))
    shape = ["--set", "target.num_particles=3", "--set", "target.dim=2"]

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["demx", *map(str, arguments)])
        cli.main()
        return capsys.readouterr().out

    sizes = [f"--set=sampler.{name}={value}" for name, value in SHORT["sampler"].items()]
    fit = ["fit", "double_well", "--method", "hmc", "--quiet", "--warm-start", "rows.npz"]
    assert "2 of 2 outer loops" in command(*fit, "--directory", "run", *shape, *sizes)
    assert Store("run").config()["warm_start"] == resolve.identity(rows)
    sizes = ["--chains", 8, "--max-rungs", 2, "--leapfrog", 4, "--beta-min", 0.5, "-n", 100]
    with pytest.raises(SystemExit) as stop:
        command("reference", "gmm40", "--warm-start", "rows.npz", *sizes)
    assert stop.value.code == 2 and "exact samples" in capsys.readouterr().err
