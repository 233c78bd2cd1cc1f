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
from demx.space import Euclidean
from demx.store import Store
from demx.targets.atomistic import from_atoms
from demx.targets.function import FunctionTarget
from demx.targets.molecular import from_system
from demx.targets.probabilistic import from_model
from demx.types import Samples
from untrained import FLAT, untrained

BOWL = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(2))


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


@pytest.mark.parametrize("name", ["target", "method"])
def test_a_run_that_does_not_say_what_of(name, tmp_path, plane):
    Store(tmp_path).open({k: v for k, v in plane.config.items() if k != name})
    with pytest.raises(UserError, match=f"expected an entry '{name}', found none"):
        demx.load(tmp_path)


def test_a_likelihood_that_is_not_known(plane, monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    expected = "likelihood: expected one of auto, native, flow, none, got 'exact'"
    with pytest.raises(UserError, match=expected):
        plane.evaluate(10, likelihood="exact")


def test_reference_sets_that_are_not_there(plane, tmp_path, monkeypatch):
    """Before anything is drawn."""
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match=r"none\.npz"):
        plane.evaluate(10, reference=tmp_path / "none.npz")


def test_chains_have_no_learned_path():
    settings = {"sampler": {"num_chains": 4, "relax_steps": 2}}
    chains = untrained("gmm40", settings, method="hmc")
    with pytest.raises(UserError, match="correct: this method has no learned path for 'smc'"):
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
