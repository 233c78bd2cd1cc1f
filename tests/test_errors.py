"""Errors that no other test meets: each says what was expected, what came, and what to do."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import cli, correction, measurement, outputs, resolve, samples
from demx.config import build_method
from demx.drawing import Drawing
from demx.errors import UserError
from demx.evaluate import observables
from demx.space import Euclidean, MeanFree, space_of
from demx.store import Store
from demx.targets.atomistic import from_atoms
from demx.targets.function import FunctionTarget
from demx.targets.molecular import from_system
from demx.targets.probabilistic import from_model
from demx.types import Samples
from untrained import FLAT, untrained


def bowl(x):
    return 0.5 * jnp.sum(x * x)


BOWL = FunctionTarget(bowl, Euclidean(2))


@pytest.fixture(scope="module")
def plane():
    return untrained("gmm40", FLAT)


def test_a_checkpoint_without_a_configuration(tmp_path):
    store = Store(tmp_path)
    store.checkpoint_file.parent.mkdir()
    store.checkpoint_file.write_bytes(b"")
    with pytest.raises(UserError, match=r"has a checkpoint but no config\.toml.* name another"):
        store.open({"target": "gmm40"})


def test_a_configuration_that_is_not_toml(tmp_path):
    (tmp_path / "config.toml").write_text("target = \n")
    with pytest.raises(UserError, match=r"config\.toml: not valid TOML \(.*line 1"):
        demx.load(tmp_path)


def test_a_run_without_a_checkpoint(tmp_path, plane):
    Store(tmp_path).open(plane.config)
    with pytest.raises(UserError, match="no checkpoint yet; run demx fit first"):
        demx.load(tmp_path)


@pytest.mark.parametrize("name", ["target", "method", "seed"])
def test_a_run_that_does_not_say_what_of(name, tmp_path, plane):
    Store(tmp_path).open({k: v for k, v in plane.config.items() if k != name})
    with pytest.raises(UserError, match=f"expected an entry '{name}', found none"):
        demx.load(tmp_path)


def test_a_run_of_a_file_that_does_not_say_of_which_energy(tmp_path, plane):
    about = plane.config | {"source": f"{tmp_path}/mine.py:energy", "dim": 2}
    Store(tmp_path).open(about)
    with pytest.raises(UserError, match="expected an entry 'fingerprint', found none"):
        demx.load(tmp_path)
    (tmp_path / "mine.py").write_text("def energy(x):\n    return (x * x).sum()\n")
    Store(tmp_path / "short").open(about | {"fingerprint": ["(2,)"]})  # of nine entries
    with pytest.raises(UserError, match="is not the energy this run was trained on"):
        demx.load(tmp_path / "short")


@pytest.mark.parametrize(
    "where, match",
    [
        ((None, None), r"an energy function needs one of dim=… and particles=\(n, dimension\)"),
        (("2", None), "dim: expected a whole number of at least 1, got '2'"),
        ((2.5, None), "dim: expected a whole number of at least 1, got 2.5"),
        ((None, 4), r"particles: expected two whole numbers, \(n, dimension\), got 4"),
        ((None, (4, 2, 1)), r"particles: expected two whole numbers, .*, got \(4, 2, 1\)"),
        ((None, (4, 2.5)), r"particles: expected two whole numbers, .*, got \(4, 2.5\)"),
        ((None, (4, 2), 3), "species: expected a whole number for each particle, got 3"),
        ((None, (4, 2), (0, 1)), "species: expected one for each of 4 particles, got 2"),
        ((2, None, (0, 1)), r"species: only for particles=\(n, dimension\)"),
    ],
)
def test_a_space_that_cannot_be(where, match):
    with pytest.raises(ValueError, match=match):
        space_of(*where)


def test_a_space_by_numbers_of_numpy():
    """They are written to files, and compared with what is read there."""
    kinds = np.array([0, 0, 1, 1])
    energy = lambda x: jnp.sum(x * x)  # noqa: E731
    particles = np.array([4, 2])
    opened = resolve.open_target(energy, {}, particles=particles, species=kinds, look=False)
    assert opened.target.space == MeanFree(4, 2, (0, 0, 1, 1))
    assert opened.where == {"particles": [4, 2], "species": [0, 0, 1, 1]}
    assert all(type(one) is int for several in opened.where.values() for one in several)
    flat = resolve.open_target(energy, {}, dim=np.int64(3), look=False)
    assert flat.where == {"dim": 3} and type(flat.where["dim"]) is int


@pytest.mark.parametrize(
    "use",
    [
        lambda **space: demx.fit(bowl, **space),
        lambda **space: demx.assess(bowl, np.zeros((20, 2)), n=10, **space),
        lambda **space: demx.reference(bowl, **space),
    ],
    ids=["fit", "assess", "reference"],
)
def test_a_shape_that_may_be_of_particles(use):
    match = r"shape: \(13, 3\) does not say .* say particles=\(13, 3\) .* dim=39"
    with pytest.raises(UserError, match=match):
        use(shape=(13, 3))
    with pytest.raises(UserError, match="expected one of shape, dim and particles, got two"):
        use(shape=(2,), dim=2)


def test_a_shape_of_one_number_is_a_dimension():
    found = demx.assess(bowl, np.eye(20, 3, dtype=np.float32), n=10, shape=(3,))
    assert found.metrics["energy_mean"].value == pytest.approx(0.5 * 3 / 20)


def test_a_likelihood_that_is_not_known(plane, monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    expected = "likelihood: expected one of auto, native, flow, none, got 'exact'"
    with pytest.raises(UserError, match=expected):
        plane.evaluate(10, likelihood="exact")


CHAINS = {"sampler": {"num_chains": 4, "relax_steps": 2}}
PINNED = {**FLAT, "pin": {"variance": 0.5, "max_norm": 10.0}}


@pytest.mark.parametrize(
    "options, match",
    [
        ({"likelihood": "native"}, r"likelihood: .* no density and no weights .*; flow trains a"),
        ({"likelihood": "native", "correct": "hmc"}, "likelihood: .* no density and no weights"),
        ({"correct": "smc"}, "correct: .* has no learned noise levels for smc"),
    ],
)
def test_what_a_method_cannot_do_is_refused_before_it_draws(options, match, monkeypatch):
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match=match):
        untrained("gmm40", CHAINS, method="hmc").evaluate(10, **options)


@pytest.mark.parametrize("settings, method", [(CHAINS, "hmc"), (PINNED, "idem")])
def test_weights_that_there_are_none_of(settings, method, monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    sampler = untrained("gmm40", settings, method=method)
    for call in (lambda: sampler.sample(10, weights=True), sampler.log_z):
        with pytest.raises(UserError, match="this sampler has no density and no weights"):
            call()


def test_reference_sets_that_are_not_there(plane, tmp_path, monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match=r"none\.npz"):
        plane.evaluate(10, reference=tmp_path / "none.npz")


def test_chains_have_no_learned_path():
    chains = untrained("gmm40", CHAINS, method="hmc")
    with pytest.raises(UserError, match=r"correct: .* has no learned noise levels for smc"):
        chains.sample(4, correct="smc")


@pytest.mark.parametrize(
    "words, match",
    [
        ("x.npy --target gmm40 --correct hmc", "only for a run"),
        ("x.npy", r"x\.npy: name the target of these samples with --target"),
        (". --target gmm40", "--target, .*: only for a file; a run knows its own"),
        (". --dim 2", "--target, .*: only for a file; a run knows its own"),
    ],
)
def test_options_of_evaluate_for_a_run_or_a_file_alone(words, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((20, 2), np.float32))
    with pytest.raises(UserError, match=match):
        cli.call(["evaluate", *words.split()])


def test_a_probe_that_was_not_kept_whole():
    with pytest.raises(UserError, match="expected probe with local_variance, spread, energy_calls"):
        measurement.kept({"probe": {"spread": 1.0}})


@pytest.mark.parametrize("values", [{"every": -1}, {"n": 1}])
def test_looks_that_cannot_be_taken(values, plane):
    told = {"every": 0, "n": 1000} | values
    expected = f"evaluation: expected every >= 0 and n >= 2, got every={told['every']}, n="
    with pytest.raises(UserError, match=expected):
        build_method("idem", plane.target, {**plane.config, "evaluation": told})


def test_samples_too_far_away_for_a_step_size(key):
    drawn = Samples(jnp.full((8, 2), 1e30) * jnp.arange(8.0)[:, None])
    with pytest.raises(UserError, match="some are too far away to be squared; train longer"):
        correction.metropolis(key, BOWL, drawn, "mala", 4)


def test_frames_of_different_sizes(tmp_path):
    pytest.importorskip("ase")
    frame = "{}\nProperties=species:S:1:pos:R:3\n"
    text = "".join(frame.format(n) + "X 0 0 0\n" * n for n in (2, 3))
    (tmp_path / "x.extxyz").write_text(text)
    with pytest.raises(UserError, match=r"expected frames of one size, found \[2, 3\] atoms"):
        samples.read(tmp_path / "x.extxyz")


def test_netcdf_without_samples(tmp_path):
    h5netcdf = pytest.importorskip("h5netcdf")
    with h5netcdf.File(tmp_path / "x.nc", "w") as file:
        file.create_group("posterior")
    with pytest.raises(UserError, match="expected a variable 'x' in the group 'posterior'"):
        samples.read(tmp_path / "x.nc")


def test_weights_of_netcdf_are_no_sites(tmp_path):
    """A posterior may have variables of any name; what samples have stands in sample_stats."""
    h5netcdf = pytest.importorskip("h5netcdf")
    x, sites = np.arange(8.0).reshape(1, 4, 2), np.full((1, 4), 7.0)
    with h5netcdf.File(tmp_path / "x.nc", "w") as file:
        file.dimensions = {"chain": 1, "draw": 4, "coordinate": 2}
        for group, name, values in (
            ("unconstrained_posterior", "x", x), ("posterior", "x", sites),
            ("posterior", "island", sites), ("posterior", "log_weight", sites),
        ):  # fmt: skip
            axes = ("chain", "draw", "coordinate")[: values.ndim]
            file.create_variable(f"{group}/{name}", axes, float, data=values)
    stored = samples.read(tmp_path / "x.nc")
    np.testing.assert_array_equal(stored.x, x[0])
    assert stored.log_weight is None and stored.island is None


class _Named(FunctionTarget):
    """A target whose one site has a name."""

    site: str

    def named(self, x):
        return {self.site: x}


@pytest.mark.parametrize("site", ["chain", "draw", "energy", "log_weight", "island"])
def test_sites_that_are_called_like_what_samples_have(site, tmp_path):
    """Axes of ArviZ, the energy of a summary, weights."""
    pytest.importorskip("h5netcdf")
    chunk = {"x": np.zeros((3, 2), np.float32), "energy": np.zeros(3)}
    target = _Named(jnp.sum, Euclidean(2), site)
    for suffix in ("nc", "csv"):
        with pytest.raises(UserError, match=f"{site}: expected no site of this name"):
            outputs.write(tmp_path / f"x.{suffix}", [chunk], 3, target, dict)
    with pytest.raises(UserError, match=f"{site}: expected no site of this name"):
        observables.observable("energy", target.space, target.named)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "make, module, extra",
    [
        (from_atoms, "ase.units", "ase"),
        (from_system, "openmm", "openmm"),
        (from_model, "numpyro.infer.util", "numpyro"),
    ],
)
def test_an_extra_that_is_not_installed(make, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{make.__name__} needs .*pip install '\.\[{extra}\]'"):
        make(print)  # there is nothing else to hand over without the library


def test_a_formula_is_no_structure():
    pytest.importorskip("ase")
    with pytest.raises(UserError, match=r"atoms: expected ase\.Atoms, .*, got 'H2O'"):
        from_atoms("H2O")


def test_netcdf_is_refused_before_drawing_where_h5netcdf_is_missing(plane, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5netcdf", None)
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match=r"x\.nc: netCDF needs h5netcdf; pip install '\.\[arviz\]'"):
        plane.sample_to(tmp_path / "x.nc", 5)


@pytest.mark.parametrize(
    "suffix, module, needed",
    [
        ("nc", "h5netcdf", r"netCDF needs h5netcdf; pip install '\.\[arviz\]'"),
        ("extxyz", "ase.io", r"extxyz needs ASE; pip install '\.\[ase\]'"),
    ],
)
def test_files_that_an_extra_reads(suffix, module, needed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"x.{suffix}"
    path.write_text("")
    with pytest.raises(UserError, match=f"reading {needed}.* give an npz"):
        samples.read(path)


def test_a_target_whose_density_is_none():
    class Vector:
        space = Euclidean(2)

        def log_density(self, x):
            return x

    with pytest.raises(UserError, match=r"its log_density is not usable; .*expected a scalar"):
        resolve.open_target(Vector(), {})
