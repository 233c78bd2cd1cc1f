"""Calculators of ASE and models of NumPyro as targets, and the examples of both."""

import importlib.util
import runpy
from pathlib import Path

import ase.io
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms
from ase.units import kB
from numpyro import distributions as dist

import demx
from demx import assessment, beginning, cli, devices, recipe, resolve, samples
from demx.energy import energies, evaluate
from demx.errors import UserError
from demx.report import html
from demx.space import Euclidean, MeanFree, normal
from demx.targets.atomistic import from_atoms
from demx.targets.function import FunctionTarget
from demx.targets.probabilistic import from_model
from hosts import CHAINS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def all_devices_again(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)


def test_atoms_in_units_of_kt(key):
    """A Lennard-Jones dimer at its minimum: -ε/kT, no force; ASE's own numbers elsewhere."""
    atoms = ase.Atoms("Ar2", positions=[[0, 0, 0], [2 ** (1 / 6) * 3.4, 0, 0]])
    calculator = LennardJones(sigma=3.4, epsilon=0.0104, rc=1e3, smooth=False)
    target = from_atoms(atoms, calculator, temperature=40.0, length=3.4, trap=0)
    x = jnp.asarray(atoms.positions - atoms.positions.mean(axis=0), float)[None] / 3.4
    found = evaluate(target, x)
    assert float(found.log_density[0]) == pytest.approx(0.0104 / (kB * 40), rel=1e-3)
    np.testing.assert_allclose(found.score, 0, atol=1e-2)
    assert target.space == MeanFree(2, 3) and target.calls == 2 and target.claim() == 1
    np.testing.assert_allclose(target.start, x, rtol=1e-6)
    assert from_atoms(ase.Atoms("Ar2"), calculator, trap=0.1).start is None
    apart = normal(key, target.space, (4,))
    moved = atoms.copy()
    moved.calc = calculator
    for x, e in zip(apart, energies(target, apart), strict=True):
        moved.positions = 3.4 * np.asarray(x, float)
        assert float(e) == pytest.approx(moved.get_potential_energy() / (kB * 40), rel=1e-4)


def test_forces_trap_and_species_of_atoms(key):
    """The slope is that of the energy, by central differences in double precision."""
    atoms = ase.Atoms("AuCu2", positions=[[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]])
    target = from_atoms(atoms, EMT(), temperature=600.0, trap=0.2)
    assert target.space.species == (79, 29, 29) and target.space.several == (1, 0, 0)
    x = np.asarray(atoms.positions - atoms.positions.mean(axis=0))
    _, slope = target.host(x)
    for i, j in ((0, 0), (1, 2), (2, 1)):
        shift = np.zeros((3, 3))
        shift[i, j] = 1e-4
        up, down = target.host(x + shift)[0], target.host(x - shift)[0]
        assert float(slope[i, j]) == pytest.approx(float(up - down) / 2e-4, rel=1e-4, abs=1e-3)
    # the trap: ½ k Σ|r|² in units of kT
    free = from_atoms(atoms, EMT(), temperature=600.0, trap=0)
    more = target.host(x)[0] - free.host(x)[0]
    assert float(more) == pytest.approx(0.1 * np.sum(x**2) / (kB * 600), rel=1e-6)
    frames = target.frames(np.stack([x, 2 * x]))
    assert [f.get_chemical_formula() for f in frames] == ["AuCu2"] * 2
    np.testing.assert_allclose(frames[1].positions, 2 * x)


def test_atoms_without_a_trap_are_warned_of():
    """½ k R² = kT for a dimer of 4 Å, R = 2 Å: k = kT/2."""
    atoms = ase.Atoms("Cu2", positions=[[0, 0, 0], [4, 0, 0]])
    with pytest.warns(UserWarning, match=rf"no normalisable .*trap={kB * 300 / 2:.2g} \(eV/Å²\)"):
        free = from_atoms(atoms, EMT())
    kept = from_atoms(atoms, EMT(), trap=0)
    x = np.asarray(atoms.positions, float)
    assert free.host(x)[0] == kept.host(x)[0]
    with pytest.warns(UserWarning, match="a trap"):
        from_atoms(ase.Atoms("Cu2"), EMT())


def test_a_calculator_that_is_none_is_told():
    atoms = ase.Atoms("Cu2", positions=[[0, 0, 0], [2.5, 0, 0]])
    with pytest.raises(UserError, match=r"such as EMT.*got EMT, which is a class: call it"):
        from_atoms(atoms, EMT, trap=0.1)
    with pytest.raises(UserError, match=r"calculator: expected one of ASE's, made.*got 'emt'"):
        from_atoms(atoms, "emt", trap=0.1)


def test_frames_in_the_units_of_ase(tmp_path, monkeypatch):
    """Elements, Å and eV of the calculator, not asked again; x comes back from the file."""
    monkeypatch.setattr(recipe, "POINTS", 4)
    atoms = ase.Atoms("AuCu2", positions=[[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]])
    target = from_atoms(atoms, EMT(), temperature=600.0, trap=0.2, length=2.0)
    sampler = demx.fit(target, **QUICK)
    before, path = target.calls, tmp_path / "x.extxyz"
    written = sampler.sample_to(path, 12)
    assert target.calls - before == written.energy_calls
    drawn = sampler.sample(12)
    stored = samples.read(path)
    np.testing.assert_allclose(stored.x, drawn.x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stored.log_weight, drawn.log_weight, rtol=1e-5)
    for frame, x in zip(ase.io.read(path, ":"), np.asarray(drawn.x), strict=True):
        assert frame.get_chemical_formula() == "AuCu2" and frame.info["temperature"] == 600
        alone = atoms.copy()
        alone.positions, alone.calc = frame.positions, EMT()
        reduced = float(target.host(np.asarray(x, float))[0])
        assert frame.info["reduced_energy"] == pytest.approx(reduced, rel=1e-5)
        # the difference of two numbers in single precision
        rounding = 1e-6 * abs(reduced) * kB * 600
        wanted = alone.get_potential_energy()
        assert frame.get_potential_energy() == pytest.approx(wanted, rel=1e-4, abs=rounding)
    ase.io.write(tmp_path / "frames.extxyz", target.frames(drawn.x))
    again = samples.read(tmp_path / "frames.extxyz")
    np.testing.assert_allclose(again.x, drawn.x, rtol=1e-5, atol=1e-6)


GOLD = """
from ase import Atoms
from ase.calculators.emt import EMT
from demx.targets.atomistic import from_atoms

POSITIONS = [[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]]


def target():
    return from_atoms(Atoms("AuCu2", POSITIONS), EMT(), temperature=600, trap=0.2, length=2.0)
"""


def test_frames_of_other_programs_are_in_angstrom(tmp_path):
    """Of a target of atoms; x of any other target are the positions as they are."""
    atoms = ase.Atoms("AuCu2", positions=[[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]])
    target = from_atoms(atoms, EMT(), temperature=600.0, trap=0.2, length=2.0)
    ase.io.write(tmp_path / "plain.extxyz", atoms)
    shrunk = from_atoms(atoms, EMT(), temperature=600.0, trap=0.2, length=0.5)
    ase.io.write(tmp_path / "shrunk.extxyz", shrunk.frames(shrunk.start))  # x there in 0.5 Å
    for name in ("plain", "shrunk"):
        stored = samples.read(tmp_path / f"{name}.extxyz")
        found = assessment.on_space(stored, target)
        np.testing.assert_allclose(found.x, target.start, atol=1e-6)
        again = samples.fitting(found, target, name)
        np.testing.assert_array_equal(again.x, found.x)
        begun = jnp.asarray(beginning.points(stored, target, "warm start"))
        np.testing.assert_allclose(target.space.project(begun), target.start, atol=1e-6)
    three = FunctionTarget(lambda x: jnp.sum(x * x), MeanFree(3, 3))
    plain = samples.read(tmp_path / "plain.extxyz")
    assert np.array_equal(beginning.points(plain, three, "warm start")[0], np.float32(plain.x[0]))


@pytest.mark.parametrize(
    "words",
    [
        "evaluate x.extxyz --target gold.py:target -n 10",
        "fit gold.py:target --method hmc --quiet --warm-start x.extxyz",
        "reference gold.py:target -n 100 --warm-start x.extxyz",
    ],
)
def test_frames_of_other_atoms_are_refused(words, tmp_path, monkeypatch):
    """The same atoms in another order are a configuration of another energy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gold.py").write_text(GOLD)
    frames = [ase.Atoms("Cu2Au", positions=[[0, 2.5, 0.3], [2.6, 0, 0], [0, 0, 0]])] * 20
    ase.io.write("x.extxyz", frames)
    with pytest.raises(UserError, match=r"expected the target's atoms .*, AuCu2, found Cu2Au"):
        cli.call(words.split())


def test_a_report_is_of_the_atoms_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "POINTS", 4)
    atoms = ase.Atoms("AuCu2", positions=[[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]])
    sampler = demx.fit(from_atoms(atoms, EMT(), temperature=600.0, trap=0.2), **QUICK)
    ase.io.write(tmp_path / "x.extxyz", [atoms[[1, 2, 0]]] * 20)
    with pytest.raises(UserError, match=r"x\.extxyz: expected .*, AuCu2, found Cu2Au"):
        html.write_fitted(sampler, tmp_path / "report.html", samples=tmp_path / "x.extxyz")


def test_frames_list_their_atoms_in_one_order(tmp_path):
    atoms = ase.Atoms("AuCu2", positions=[[0, 0, 0], [2.6, 0, 0], [0, 2.5, 0.3]])
    ase.io.write(tmp_path / "x.extxyz", [atoms, atoms, atoms[[1, 2, 0]]])
    with pytest.raises(UserError, match="found AuCu2 in the first and Cu2Au in that after 2"):
        samples.read(tmp_path / "x.extxyz")


class Heavy(LennardJones):
    """Energies like those of all electrons."""

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        self.results["energy"] -= 5e5


def test_a_large_energy_that_is_the_same_everywhere_is_taken_off():
    """At 300 K 5·10⁵ eV are 1.9·10⁷ kT, where single precision knows multiples of 2."""
    atoms = ase.Atoms("Ar2", positions=[[0, 0, 0], [3.9, 0, 0]])
    about = dict(sigma=3.4, epsilon=0.05, rc=1e3, smooth=False)
    heavy = from_atoms(atoms, Heavy(**about), trap=0.1)
    light = from_atoms(atoms, LennardJones(**about), trap=0.1)
    assert light.zero == 0 and heavy.zero == 1000 * round(-5e5 / (kB * 300) / 1000)
    x = jnp.asarray([[[-1.8, 0, 0], [1.8, 0, 0]], [[-1.9, 0, 0], [1.9, 0, 0]]])
    low, whole = energies(light, x), energies(heavy, x)
    np.testing.assert_allclose(np.diff(whole), np.diff(low), atol=1e-3)
    np.testing.assert_allclose(
        heavy.electronvolts(x, whole) + 5e5, light.electronvolts(x, low), atol=1e-5
    )


def test_making_a_target_of_atoms_is_a_call_that_is_counted_once():
    """That of the structure, from which energies are counted; by `demx sample`, `evaluate`, too."""
    atoms = ase.Atoms("Cu2", positions=[[0, 0, 0], [2.5, 0, 0]])
    target = from_atoms(atoms, EMT(), trap=0.1)
    assert resolve.opening_calls({"source": "mine.py:target"}, target) == 1 + resolve.FINGERPRINT
    again = demx.fit(target, **QUICK)
    assert target.calls == 1 + again.progress.energy_calls


def test_positions_that_are_not_finite_are_bad():
    """EMT raises there; a chain that has left for infinity does not end a run."""
    atoms = ase.Atoms("Cu2", positions=[[0, 0, 0], [2.5, 0, 0]])
    target = from_atoms(atoms, EMT(), trap=0.1)
    away = jnp.asarray(atoms.positions, float).at[0, 0].set(jnp.nan)
    assert evaluate(target, jnp.stack([target.start[0], away])).bad.tolist() == [False, True]
    assert (target.calls, target.unasked) == (3, 1)


def test_atoms_that_are_refused():
    atoms = ase.Atoms("Cu2", positions=[[0, 0, 0], [2.5, 0, 0]])
    with pytest.raises(UserError, match="expected a calculator, found none"):
        from_atoms(atoms)
    with pytest.raises(UserError, match="temperature: expected a positive number, got -1"):
        from_atoms(atoms, EMT(), temperature=-1)
    with pytest.raises(UserError, match=r"trap: expected 0 or more, .* got -0\.1"):
        from_atoms(atoms, EMT(), trap=-0.1)
    with pytest.raises(UserError, match="species: expected one for each of 2 atoms, got 3"):
        from_atoms(atoms, EMT(), trap=0, species=(0, 0, 0))
    held = atoms.copy()
    held.set_constraint(FixAtoms([0]))
    with pytest.raises(UserError, match="expected no constraints"):
        from_atoms(held, EMT())
    with pytest.raises(UserError, match=r"found pbc=\[True, True, True\]"):
        from_atoms(ase.Atoms("Cu2", positions=atoms.positions, cell=[9, 9, 9], pbc=True), EMT())


def test_the_first_error_of_a_calculator_is_the_one_that_is_told():
    """EMT without a potential is left half made: what it raises when asked again says nothing."""
    atoms = ase.Atoms("UCu", positions=[[0, 0, 0], [2.5, 0, 0]])
    with pytest.raises(UserError, match="NotImplementedError: No EMT-potential for U"):
        from_atoms(atoms, EMT(), trap=0.1)


class Torn(LennardJones):
    """Gives up where the atoms are far apart."""

    def calculate(self, *args, **kwargs):
        super().calculate(*args, **kwargs)
        if self.atoms.get_distance(0, 1) > 5:
            raise ArithmeticError("too far")


def test_failures_of_a_calculator_are_named(key):
    """As the error says: such points are bad, and the others have their energies."""
    atoms = ase.Atoms("Ar2", positions=[[0, 0, 0], [3.9, 0, 0]])
    target = from_atoms(atoms, Torn(sigma=3.4, rc=1e3), trap=0.1, failures=(ArithmeticError,))
    both = jnp.concatenate([target.start, 2 * target.start])
    assert evaluate(target, both).bad.tolist() == [False, True] and target.failed == 1
    strict = from_atoms(atoms, Torn(sigma=3.4, rc=1e3), trap=0.1)
    with pytest.raises(UserError, match=r"too far; .*say failures=\(ArithmeticError,\)"):
        strict.host(np.asarray(2 * target.start))


def coin(heads, tails):
    """A coin of unknown bias: Beta(1 + heads, 1 + tails)."""
    bias = numpyro.sample("bias", dist.Uniform(0, 1))
    numpyro.deterministic("odds", bias / (1 - bias))
    numpyro.sample("obs", dist.Binomial(heads + tails, bias), obs=heads)


def test_a_model_on_unconstrained_coordinates():
    """log p̃(u) = log[binom θ^h (1-θ)^t · θ(1-θ)], θ = 1/(1 + e^-u); its constant is the data's."""
    target = from_model(coin, 3, tails=1)
    assert target.space == Euclidean(1)
    u = jnp.linspace(-2, 2, 5)[:, None]
    theta = 1 / (1 + np.exp(-np.asarray(u[:, 0], float)))
    want = np.log(4 * theta**3 * (1 - theta) * theta * (1 - theta))
    found = evaluate(target, u)
    np.testing.assert_allclose(found.log_density, want, rtol=1e-4)
    slope = 3 + 1 - 6 * theta  # d/du log θ^4 (1-θ)^2
    np.testing.assert_allclose(found.score[:, 0], slope, atol=1e-4)
    sites = target.constrain(u)
    assert set(sites) == {"bias", "odds"}
    np.testing.assert_allclose(sites["bias"], theta, rtol=1e-5)
    np.testing.assert_allclose(sites["odds"], theta / (1 - theta), rtol=1e-4)
    with pytest.raises(UserError, match=r"samples: expected shape \(n, 1\), got \(3,\)"):
        target.constrain(jnp.ones(3))


def test_models_that_are_refused():
    with pytest.raises(UserError, match="expected latent sites, found none"):
        from_model(lambda: numpyro.sample("y", dist.Normal(0, 1), obs=jnp.asarray(0.3)))


@pytest.mark.parametrize("latent", [dist.Bernoulli(0.3), dist.Poisson(2.0)])
def test_discrete_sites_are_refused(latent, recwarn):
    """Whether NumPyro could sum them out or not; those that are observed are none."""

    def model():
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        numpyro.sample("kind", latent)
        numpyro.sample("seen", dist.Bernoulli(jnp.exp(-spread)), obs=jnp.asarray(1))

    with pytest.raises(UserError, match="model: sites kind are discrete; sum them out"):
        from_model(model)
    assert not recwarn.list


@pytest.mark.parametrize("name", ["energy", "log_weight", "island", "chain", "draw"])
def test_sites_with_names_that_are_taken(name):
    """Refused before anything is trained; those that are observed are in no file."""

    def model(name, level, seen):
        level = numpyro.deterministic(level, numpyro.sample(name, dist.Normal(0, 1)) + 1)
        numpyro.sample(seen, dist.Normal(level, 1), obs=jnp.asarray(0.3))

    for names in ((name, "level", "seen"), ("mean", name, "seen")):
        with pytest.raises(UserError, match=f"{name}: expected no site of this name"):
            from_model(model, *names)
    assert from_model(model, "mean", "level", name).space == Euclidean(1)


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40
    return module


QUICK = {
    "method": "importance",
    "settings": {"sampler": {"num_samples": 64, "outer_steps": 2}, "evaluation": {"every": 0}},
    "progress": False,
    "scale": 2.0,
}


@pytest.mark.parametrize("name", ["black_box", "numpyro_schools", "numpyro_mixture"])
def test_the_examples_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example(name).main(n=40, **QUICK)
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", ["two_rings", "pair_potential"])
def test_the_examples_that_are_scripts_run(name, tmp_path, monkeypatch, capsys):
    """As they stand, but for what they would train."""
    monkeypatch.chdir(tmp_path)
    fit = demx.fit
    monkeypatch.setattr(demx, "fit", lambda energy, **options: fit(energy, **options | QUICK))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "name, file, formula", [("ase_cluster", "cluster", "AuCu3"), ("ase_argon", "argon", "Ar13")]
)
def test_the_examples_of_ase_run(name, file, formula, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # 20 states of each of four chains: fewer say nothing of each other
    example(name).main(n=80, settings=CHAINS, progress=False)
    assert "The chains " in capsys.readouterr().out
    frames = ase.io.read(f"{file}.extxyz", index=":")
    assert len(frames) == 80 and frames[0].get_chemical_formula() == formula
