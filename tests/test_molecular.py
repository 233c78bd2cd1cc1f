"""Systems of OpenMM as targets, and dihedrals as coordinates."""

import importlib.util
from pathlib import Path

import ase.io
import jax
import jax.numpy as jnp
import numpy as np
import openmm
import pytest

import demx
from demx import devices, recipe, samples
from demx.energy import evaluate
from demx.errors import UserError
from demx.evaluate.observables import dihedral, observable
from demx.space import MeanFree, image, normal
from demx.targets.molecular import from_system

EXAMPLE = Path(__file__).parents[1] / "examples" / "openmm_alanine.py"
KT = 8.31446261815324e-3 * 300  # kJ/mol


@pytest.fixture(autouse=True)
def all_devices_again(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)


@pytest.fixture
def mm():
    return openmm


@pytest.fixture
def alanine(mm):
    spec = importlib.util.spec_from_file_location("openmm_alanine", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chain(mm, bonds, masses=(12.0, 1.0, 1.0)):
    """Harmonic bonds (i, j, length in nm, stiffness in kJ/mol/nm²) and nothing else."""
    system, force = mm.System(), mm.HarmonicBondForce()
    for mass in masses:
        system.addParticle(mass)
    for bond in bonds:
        force.addBond(*bond)
    system.addForce(force)
    return system


def test_a_bond_in_units_of_kt(mm):
    """½k(r - r₀)²/kT along a bond, its slope at both ends, the trap about the centre."""
    system = chain(mm, [(0, 1, 0.1, 2000.0)], (12.0, 16.0))
    x = jnp.array([[[-0.9, 0, 0], [0.9, 0, 0]]])  # r = 0.18 nm
    target = from_system(system, temperature=300.0)
    found = evaluate(target, x)
    np.testing.assert_allclose(found.log_density, -1000 * 0.08**2 / KT, rtol=1e-5)
    slope = 2000 * 0.08 * 0.1 / KT
    np.testing.assert_allclose(found.score[0, :, 0], [slope, -slope], rtol=1e-5)
    assert target.calls == 1 and target.space == MeanFree(2, 3, (0, 1))
    trapped = from_system(system, temperature=300 * mm.unit.kelvin, trap=5.0)
    more = evaluate(trapped, x).log_density - found.log_density
    np.testing.assert_allclose(more, -0.5 * 5 * 2 * 0.09**2 / KT, rtol=1e-3)
    wide = from_system(system, temperature=300.0, length=0.2)
    np.testing.assert_allclose(evaluate(wide, x / 2).score, 2 * found.score, rtol=1e-5)
    np.testing.assert_allclose(wide.positions(x / 2), 0.1 * np.asarray(x), rtol=1e-6)


def test_frames_in_the_units_of_ase(alanine, mm, tmp_path):
    """Elements of the topology, Å whatever the length, and eV without the trap."""
    system = mm.app.ForceField("amber99sb.xml").createSystem(alanine.PDB.topology)
    target = from_system(
        system, positions=alanine.PDB.positions, topology=alanine.PDB.topology, length=1.0,
        trap=10.0,
    )  # fmt: skip
    sampler = demx.fit(target, method="hmc", settings=SHORT, progress=False)
    path = tmp_path / "drawn.extxyz"
    sampler.sample_to(path, 3)
    drawn, plain = samples.read(path), from_system(system, length=1.0)
    np.testing.assert_allclose(drawn.x, sampler.sample(3).x, rtol=1e-5, atol=1e-6)
    for frame, x in zip(ase.io.read(path, ":"), np.asarray(drawn.x), strict=True):
        assert str(frame.symbols) == "CH3CONHCHCH3CONHCH3" and frame.info["temperature"] == 300
        assert frame.get_distance(0, 4) == pytest.approx(1.52, abs=0.3)  # a bond, in Å
        wanted = float(plain.host(np.asarray(x, float))[0]) * KT / 96.485
        assert frame.get_potential_energy() == pytest.approx(wanted, abs=1e-3)
    with pytest.raises(UserError, match="topology: expected one of 3 atoms, got one of 22"):
        from_system(chain(mm, [(0, 1, 0.1, 2000.0)]), topology=alanine.PDB.topology)
    assert not hasattr(plain, "symbols")


def test_a_large_energy_that_is_the_same_everywhere_is_taken_off(mm):
    """Energies of -5e7 kJ/mol differ by what a bond is worth, and eV have the whole."""
    system = chain(mm, [(0, 1, 0.1, 2000.0)], (12.0, 16.0))
    far = mm.CustomExternalForce("-2.5e7")
    for i in range(2):
        far.addParticle(i)
    system.addForce(far)
    target = from_system(system, positions=[[0.0, 0, 0], [0.1, 0, 0]])
    assert target.zero == 1000 * round(-5e4 / KT) and target.calls == 1
    x = np.array([[[-0.5, 0, 0], [0.5, 0, 0]], [[-0.52, 0, 0], [0.52, 0, 0]]])
    energy = -np.asarray(evaluate(target, jnp.asarray(x, float)).log_density)
    np.testing.assert_allclose(np.diff(energy), 1000 * 0.004**2 / KT, atol=1e-4)
    np.testing.assert_allclose(target.electronvolts(x, energy) * 96.48533212331, -5e7, atol=0.1)


def test_species_are_what_the_energy_cannot_tell_apart(mm):
    equal = [(0, 1, 0.1, 2000.0), (0, 2, 0.1, 2000.0)]
    assert from_system(chain(mm, equal)).space.species == (0, 1, 1)
    assert from_system(chain(mm, equal), species=(0, 1, 2)).space.species == (0, 1, 2)
    stiffer = [equal[0], (0, 2, 0.1, 2000.1)]
    assert from_system(chain(mm, stiffer)).space.several == (0, 1, 2)
    isotope = chain(mm, equal, (12.0, 1.0, 2.0))
    assert from_system(isotope).space.several == (0, 1, 2)
    triangle = chain(mm, [*equal, (1, 2, 0.1, 2000.0)], (1.0, 1.0, 1.0))
    assert from_system(triangle).space.species is None


def test_alanine_dipeptide(alanine, key):
    """The minimum is one; hydrogens of a methyl are equal; the slope is that of the energy."""
    target = alanine.alanine()
    kinds = target.space.species
    assert len(set(kinds)) == 16
    methyls = [[i for i in range(22) if kinds[i] == kinds[j]] for j in (1, 11, 19)]
    assert methyls == [[1, 2, 3], [11, 12, 13], [19, 20, 21]]
    x = 10 * np.asarray(alanine.PDB.getPositions(asNumpy=True)._value)
    energy, slope = target.host(x)
    assert float(energy) * KT == pytest.approx(-134.33, abs=0.01)
    # coordinates of three digits: half a thousandth of an Å times some 1000 kT/Å²
    assert np.abs(slope).max() < 5
    mirrored = image(key, target.space, jnp.asarray(x, float))
    assert float(target.host(mirrored)[0]) == pytest.approx(float(energy), abs=1e-2)
    away = x + 0.1 * np.asarray(normal(key, target.space))
    slope = target.host(away)[1]
    for i, j in ((0, 0), (9, 1), (21, 2)):
        shift = np.zeros((22, 3))
        shift[i, j] = 1e-4
        up, down = target.host(away + shift)[0], target.host(away - shift)[0]
        assert float(slope[i, j]) == pytest.approx(float(up - down) / 2e-4, rel=1e-4, abs=1e-3)
    phi, psi, hand = (
        observable(name, target.space)(x[None], None)
        for name in (alanine.PHI, alanine.PSI, alanine.HAND)
    )
    np.testing.assert_allclose(target.start, (x - x.mean(axis=0))[None], atol=1e-5)
    assert (phi[0], psi[0]) == pytest.approx((-77.5, -14.7), abs=0.1) and hand[0] > 0


def test_platforms_agree(alanine, mm):
    field = mm.app.ForceField("amber99sb.xml")
    system = field.createSystem(alanine.PDB.topology)
    x = 10 * np.asarray(alanine.PDB.getPositions(asNumpy=True)._value)[None]
    points = np.concatenate([x, 1.02 * x, np.full_like(x, np.nan)])
    double, single = from_system(system), from_system(system, platform="CPU")
    for one, other in zip(double.host(points), single.host(points), strict=True):
        np.testing.assert_allclose(one[:2], other[:2], rtol=1e-3, atol=1e-2)
        assert np.isnan(one[2]).all() and np.isnan(other[2]).all()
    with pytest.raises(UserError, match=r"platform: expected one of Reference, .*got 'Abacus'"):
        from_system(system, platform="Abacus")


def test_systems_that_are_refused(alanine, mm):
    app, topology = mm.app, alanine.PDB.topology
    field = app.ForceField("amber99sb.xml")
    with pytest.raises(UserError, match="expected no constraints, found 12; say constraints=None"):
        from_system(field.createSystem(topology, constraints=app.HBonds))
    bond = [(0, 1, 0.1, 2000.0)]
    with pytest.raises(UserError, match="expected masses above 0"):
        from_system(chain(mm, bond, (12.0, 0.0)))
    with pytest.raises(UserError, match=r"positions: expected shape \(3, 3\), got \(2, 3\)"):
        from_system(chain(mm, bond), positions=np.zeros((2, 3)))
    with pytest.raises(UserError, match="temperature: expected a positive number, got 0"):
        from_system(chain(mm, bond), temperature=0)
    with pytest.raises(UserError, match=r"trap: expected 0 or more, .* got -1"):
        from_system(chain(mm, bond), trap=-1.0)
    with pytest.raises(UserError, match="species: expected one for each of 3 atoms, got 2"):
        from_system(chain(mm, bond), species=(0, 0))
    periodic = chain(mm, bond)
    periodic.getForce(0).setUsesPeriodicBoundaryConditions(True)
    with pytest.raises(UserError, match="expected no periodic box, found one"):
        from_system(periodic)
    site = chain(mm, bond)
    site.addParticle(0.0)
    site.setVirtualSite(3, mm.TwoParticleAverageSite(0, 1, 0.5, 0.5))
    with pytest.raises(UserError, match="expected no virtual sites"):
        from_system(site)
    handed = app.ForceField("amber19-all.xml").createSystem(topology)
    with pytest.raises(UserError, match="mirror image, which CMAP terms do not give"):
        from_system(handed)


IMPORTANCE = {"sampler": {"num_samples": 16, "outer_steps": 2}, "evaluation": {"every": 0}}
SHORT = {
    "sampler": {"num_chains": 4, "length": 4, "outer_steps": 2, "relax_steps": 5, "thin": 1},
    "evaluation": {"every": 0},
}


def test_the_example_runs(alanine, mm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe, "POINTS", 4)
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    alanine.main(n=8, method="importance", settings=IMPORTANCE, progress=False, scale=1.6)
    assert "calls of OpenMM; phi < 0" in capsys.readouterr().out
    written = mm.app.PDBFile("alanine_samples.pdb")
    assert written.getNumFrames() == 8 and written.topology.getNumAtoms() == 22


def test_what_demx_counts_is_what_openmm_saw(mm):
    bonds = [(0, 1, 0.1, 2000.0), (0, 2, 0.1, 2000.0)]
    for positions in (None, [[0.0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]]):
        target = from_system(chain(mm, bonds), positions=positions)
        sampler = demx.fit(target, method="hmc", scale=1.0, settings=SHORT, progress=False)
        p = sampler.progress
        assert target.calls == p.energy_calls + p.evaluation_calls
    before = target.calls
    drawn = sampler.sample(6)
    jax.block_until_ready(drawn.x)
    assert target.calls - before == drawn.energy_calls


@pytest.mark.parametrize("angle", [-170.0, -90.0, 0.0, 30.0, 180.0])
def test_dihedrals(angle, rng):
    """Clockwise seen from j to k is above 0; a mirror image has the negative angle."""
    a = np.radians(angle)
    # seen along +z with x to the right, y is downwards: clockwise
    x = np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 1.5], [2 * np.cos(a), 2 * np.sin(a), 2.0]])
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    turn *= np.sign(np.linalg.det(turn))
    moved = (x @ turn.T + rng.normal(size=3))[None]
    apart = (dihedral(moved, 0, 1, 2, 3) - angle + 180) % 360 - 180
    np.testing.assert_allclose(apart, 0, atol=1e-9)
    apart = (dihedral(-moved, 0, 1, 2, 3) + angle + 180) % 360 - 180
    np.testing.assert_allclose(apart, 0, atol=1e-9)


def test_dihedrals_by_name(rng):
    x = rng.normal(size=(5, 6, 3))
    named = observable("dihedral:5,0,2,1", MeanFree(6, 3))(x, np.zeros(5))
    np.testing.assert_allclose(named, dihedral(x, 5, 0, 2, 1))
    for name, space in (
        ("dihedral:0,1,2,6", MeanFree(6, 3)),
        ("dihedral:0,1,2,2", MeanFree(6, 3)),
        ("dihedral:0,1,2,3", MeanFree(6, 2)),
    ):
        with pytest.raises(UserError, match="coordinate: expected one of energy"):
            observable(name, space)
