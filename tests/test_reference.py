"""Chains that reach equilibrium, reference files that can be trusted, and those that cannot."""

import inspect
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import TARGETS, asymmetric
from demx import assessment, cli, ruler
from demx.beginning import points
from demx.commands import judging
from demx.config import build_target
from demx.energy import evaluate, pointwise
from demx.errors import UserError
from demx.evaluate import equilibrium, reference
from demx.evaluate.convergence import autocorrelation_time, passes
from demx.evaluate.equilibrium import Equilibrium, equilibrium_samples
from demx.evaluate.evaluation import batched_energies
from demx.methods.tempering import Ladder, Tempering, geometric_ladder, resize, respace
from demx.space import Euclidean, MeanFree, normal
from demx.targets.function import FunctionTarget
from demx.targets.lennard_jones import lennard_jones
from demx.train import Progress
from untrained import FLAT, untrained

# mean energies of public reference sets with their standard errors
PUBLIC = {"dw4": (-22.45, 0.03), "lj13": (-43.06, 0.06), "lj55": (-325.0, 0.45)}


@pytest.mark.parametrize("name", [*TARGETS])
def test_pointwise_is_the_fused_path(name, key):
    """vmap(value_and_grad(pointwise)) is `evaluate`, value by value."""
    target = TARGETS[name]
    xs = normal(key, target.space, (5,))
    value, gradient = jax.vmap(jax.value_and_grad(pointwise(target)))(xs)
    found = evaluate(target, xs)
    np.testing.assert_array_equal(value, found.log_density)
    np.testing.assert_array_equal(gradient, found.score)


def test_a_bad_point_has_no_density():
    target = FunctionTarget(lambda x: jnp.log(x[0]), Euclidean(1))
    value, slope = jax.vmap(jax.value_and_grad(pointwise(target)))(jnp.array([[1.0], [-1.0]]))
    assert value.tolist() == [0, -jnp.inf] and slope.tolist() == [[-1], [0]]


@pytest.mark.parametrize("dim, count", [(3, 5), (2, 2)])
def test_coordinates_keep_lengths(dim, count, key):
    space = MeanFree(count, dim)
    x = normal(key, space)
    u = space.coordinates(x)
    assert u.shape == (space.dof,)
    np.testing.assert_allclose(space.configuration(u), x, atol=1e-5)
    np.testing.assert_allclose(jnp.sum(u**2), jnp.sum(x**2), rtol=1e-5)


def test_autocorrelation_time_of_an_autoregression(seed):
    """x' = ρ x + √(1-ρ²) z has τ = (1+ρ)/(1-ρ)."""
    rng, rho = np.random.default_rng(seed), 0.8
    x = rng.normal(size=(200, 1000))
    for t in range(1, 1000):
        x[:, t] = rho * x[:, t - 1] + (1 - rho**2) ** 0.5 * x[:, t]
    assert autocorrelation_time(x) == pytest.approx(9, rel=0.05)
    assert autocorrelation_time(rng.normal(size=(50, 400))) == pytest.approx(1, abs=0.1)
    stuck = np.repeat(rng.normal(size=(20, 1)), 100, axis=1)
    assert autocorrelation_time(stuck) > 50


def test_respacing_makes_rejections_equal():
    """Where the cumulative rejection is known, equal steps in it are what comes out."""
    ladder = geometric_ladder(5, 0.1, 0.1)
    new = respace(ladder, np.array([0.8, 0.4, 0.2, 0.05]), 16)
    assert len(new.beta) == 4  # 2Λ + 1, rounded up
    cumulative = np.interp(
        np.log(np.asarray(new.beta))[::-1],
        np.log(np.asarray(ladder.beta))[::-1],
        np.array([0.0, 0.8, 1.2, 1.4, 1.45])[::-1],
    )
    np.testing.assert_allclose(np.diff(cumulative), -1.45 / 3, atol=1e-4)
    short = respace(ladder, np.array([1.0, 1.0, 1.0, 1.0]), 3)  # too few rungs: hot end cut off
    assert len(short.beta) == 3 and float(short.beta[-1]) > 0.1
    assert float(short.beta[0]) == 1


def test_resize_takes_the_nearest_replica(key):
    sampler = Tempering(asymmetric(), 2)
    chains = sampler.init(jnp.ones((3, 2)), 2)
    moved = chains._replace(log_density=jnp.array([[1.0, 2.0]] * 3))
    old = Ladder(jnp.array([1.0, 0.1]), jnp.ones(2))
    new = Ladder(jnp.array([1.0, 0.8, 0.2]), jnp.ones(3))
    assert resize(moved, old, new).log_density[0].tolist() == [1, 1, 2]


def test_tempering_finds_unequal_weights(seed):
    """Three modes of weights 0.6, 0.3, 0.1 that HMC alone could not leave, within 4 s.e."""
    target = asymmetric()
    drawn = equilibrium_samples(
        jax.random.key(seed), target, 2000, Equilibrium(num_chains=32, scale=3.0, max_segment=512)
    )
    modes = np.asarray(target.modes)
    nearest = np.linalg.norm(drawn.x[:, None] - modes[None], axis=2).argmin(1)
    shares = np.bincount(nearest, minlength=3) / len(drawn.x)
    exact = np.asarray(target.sample(jax.random.key(seed + 1), 100_000))
    true = np.bincount(np.linalg.norm(exact[:, None] - modes[None], axis=2).argmin(1)) / 1e5
    error = np.sqrt(true * (1 - true) / drawn.diagnostics["ess_min"])
    assert (np.abs(shares - true) < 4 * error).all(), shares
    assert all(passes(drawn.diagnostics).values())
    assert drawn.energy_calls > 0


def test_moves_stay_in_the_subspace(key):
    target = lennard_jones(num_particles=4)
    drawn = equilibrium.samples_within(
        key, target, 64, 60_000, Equilibrium(num_chains=8, max_rungs=2)
    )
    assert drawn.x.shape == (64, 4, 3)
    np.testing.assert_allclose(drawn.x.mean(axis=1), 0, atol=1e-5)
    # the last burn-in and the last interval are rounded to whole transitions
    assert 0.5 * 60_000 < drawn.energy_calls <= 60_000
    np.testing.assert_allclose(
        drawn.log_density, -batched_energies(target, drawn.x), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("start", [None, np.full((3, 2), 0.5)])
@pytest.mark.parametrize("more", [0, 1_000, 40_000])
def test_chains_keep_within_their_calls(start, more, key):
    """From the fewest calls they can do with on."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    allowed = equilibrium.fewest_calls(assessment.MCMC) + more
    drawn = equilibrium.samples_within(key, target, 1000, allowed, assessment.MCMC, start)
    assert 0.5 * allowed < drawn.energy_calls <= allowed
    assert len(drawn.x) >= 16 and np.isfinite(drawn.x).all()
    assert len(drawn.x) == 1000 or more < 40_000


@pytest.mark.parametrize("allowed", [1, 10_000])
def test_too_few_calls_for_chains_are_told(allowed, seed):
    """On a file as of a run; what it takes stands in the help too."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    x = np.random.default_rng(seed).normal(size=(100, 2)).astype(np.float32)
    found = assessment.assess(target, x, n=50, mcmc_calls=allowed)
    assert found.mcmc is None and found.samples.energy_calls == 100
    fewest = f"{assessment.FEWEST_MCMC:,}"
    assert f"at least {fewest} energy calls, and {allowed:,} are allowed" in found.verdict[-1]
    assert fewest in inspect.getdoc(judging.evaluate)


def test_a_run_that_took_no_calls_leaves_chains_none():
    free = untrained("gmm40", FLAT)
    free.progress = Progress()
    found = free.evaluate(50, repeats=2, likelihood="none", mcmc_at_most=10**6)
    assert found.mcmc is None and "and 0 are allowed" in found.verdict[-1]
    assert "chains" not in free.evaluate(50, repeats=2, likelihood="none").verdict[-1]


def test_symmetry_is_found_out_and_used(seed):
    cluster = lennard_jones(num_particles=5)
    rng = np.random.default_rng(seed)
    x = 2 * rng.normal(size=(50, 5, 3)).astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    assert reference.is_invariant(cluster, x)
    pulled = FunctionTarget(lambda x: jnp.sum(x**2) + 0.1 * x[0, 0], MeanFree(5, 3))
    assert not reference.is_invariant(pulled, x)
    assert not reference.is_invariant(asymmetric(), np.zeros((64, 2)))
    y = reference.symmetrise(rng, x).astype(np.float32)
    assert not np.allclose(x, y)
    before, after = batched_energies(cluster, x), batched_energies(cluster, y)
    np.testing.assert_allclose(before, after, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["gmm40", "dw4", "lj13", "lj55"])
def test_shipped_sets(name):
    """All diagnostics met, as recorded and again from the file; public mean energies agree."""
    target = build_target(name, {})
    ruler = reference.find(name, {}, target)
    assert ruler.passed
    assert ruler.validation.shape == ruler.test.shape == (10_000, *target.space.shape)
    assert ruler.test.dtype == np.float32
    assert len(np.unique(np.concatenate([ruler.validation, ruler.test]), axis=0)) == 20_000
    for x in (ruler.validation, ruler.test):
        energies = batched_energies(target, x)
        error = energies.std() / 100
        if name in PUBLIC:
            mean, public_error = PUBLIC[name]
            assert abs(energies.mean() - mean) < 3 * np.hypot(error, public_error)
        pull = -(x * np.asarray(jax.jit(lambda xs: evaluate(target, xs).score)(x)))
        pull = pull.reshape(len(x), -1).sum(axis=1) / target.space.dof
        centred = name != "gmm40"  # a mixture's virial is 1 too, but with a wide spread
        assert abs(pull.mean() - 1) < (2.5 if centred else 4) * pull.std() / 100
    if name in PUBLIC:
        for found in ruler.provenance["sets"].values():
            assert found["rhat_max"] < 1.01 and found["ess_min"] > 5000


def test_a_reference_of_another_energy_is_refused():
    ruler = reference.find("lj13", {}, build_target("lj13", {}))
    with pytest.raises(UserError, match="made for another energy"):
        reference.check(ruler, lennard_jones(num_particles=13, temperature=2.0))
    with pytest.raises(UserError, match=r"expected samples of shape \(4, 2\)"):
        reference.check(ruler, build_target("dw4", {}))


def test_files_that_cannot_be_trusted(tmp_path):
    x = np.zeros((10, 2), np.float32)
    good = reference.Reference(x, x + 1, {"sets": {}, "invariant": False})
    good.save(tmp_path / "a.npz")
    again = reference.load(tmp_path / "a.npz")
    assert (again.test == 1).all() and again.provenance["invariant"] is False
    about = json.dumps({**good.provenance, "sha256": good.checksum()})
    np.savez(tmp_path / "b.npz", validation=x, test=x, provenance=np.array(about))
    with pytest.raises(UserError, match="checksum differs"):
        reference.load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", validation=np.array([{}], object), test=x, provenance=about)
    with pytest.raises(UserError, match="not a reference file"):
        reference.load(tmp_path / "c.npz")
    assert (ruler.ruler(str(tmp_path / "a.npz")).test == again.test).all()
    (tmp_path / "d.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(UserError, match="not a reference file"):
        reference.load(tmp_path / "d.npz")


def test_a_file_that_could_not_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(path, **arrays):
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    x = np.zeros((10, 2), np.float32)
    with pytest.raises(OSError, match="no space"):
        reference.Reference(x, x, {}).save(tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_the_place_of_a_reference_is_looked_at_first(tmp_path, monkeypatch):
    """And the sets are kept before their floors are begun."""
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr(reference, "make", lambda *a, **o: pytest.fail("made the sets"))
        with pytest.raises(UserError, match="expected the name of an npz file, found a directory"):
            ruler.reference("gmm40", n=100, output=tmp_path)
        with pytest.raises(UserError, match=r"nothing can be written to .*file"):
            ruler.reference("gmm40", n=100, output=tmp_path / "file" / "x.npz")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ruler, "floors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ruler.reference("gmm40", n=2000, output=tmp_path / "new" / "x.npz")
    assert reference.load(tmp_path / "new" / "x.npz").test.shape == (2000, 2)
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_files_are_named_as_text_too(tmp_path):
    made, path = ruler.reference("gmm40", n=100, output=tmp_path / "x.npz")
    found = assessment.assess("gmm40", made.test, n=50, reference=str(path))
    assert found.metrics["w2"].value == 0  # judged by itself
    target = build_target("dw4", {})
    for given in ("x.npz", Path("x.npz")):
        with pytest.raises(UserError, match=r"got the name of a file, 'x.npz'; read it with demx"):
            points(given, target, "warm start")


def test_the_command_makes_a_reference_and_evaluate_finds_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DEMX_CACHE", str(tmp_path / "cache"))
    small = ["--set", "target.num_modes=3", "--set", "target.dim=3"]

    def demx(*arguments):
        monkeypatch.setattr(sys, "argv", ["demx", *map(str, arguments)])
        cli.main()
        return capsys.readouterr().out

    said = demx("reference", "gaussian_mixture", "-n", 400, *small)
    assert "exact" in said and "2 sets of 400 samples" in said
    (file,) = (tmp_path / "cache" / "references").iterdir()
    x = reference.load(file).validation
    np.savez(tmp_path / "mine.npz", x=x, log_weight=np.zeros(len(x)))
    arguments = ["--target", "gaussian_mixture", *small, "-n", 100, "--mcmc", "--mcmc-calls", "2e4"]
    found = json.loads(demx("evaluate", tmp_path / "mine.npz", *arguments, "--json"))
    assert found["repeats"] == 4 and found["n"] == 100
    assert {"w2", "energy_w2", "modes_hit", "ess"} <= set(found["metrics"])
    assert found["metrics"]["ess"]["value"] == 1
    assert 1e4 < found["mcmc"]["energy_calls"] <= 2e4 and "w2" in found["mcmc"]["metrics"]
    assert "mcmc" in demx("evaluate", tmp_path / "mine.npz", *arguments)


def test_samples_in_other_formats(tmp_path):
    """npy, flat coordinates and extxyz hold the same samples."""
    from ase import Atoms
    from ase.io import write

    from demx import samples

    x = reference.find("lj13", {}, build_target("lj13", {})).test[:20]
    np.save(tmp_path / "x.npy", x.reshape(20, 39))
    write(tmp_path / "x.extxyz", [Atoms("Ar13", positions=p) for p in x], format="extxyz")
    for name in ("x.npy", "x.extxyz"):
        stored = samples.fitting(samples.read(tmp_path / name), build_target("lj13", {}), name)
        np.testing.assert_allclose(stored.x, x, atol=1e-6)
        found = assessment.assess("lj13", stored, n=20)
        assert found.metrics["w2_aligned"].n == 20
    with pytest.raises(UserError, match=r"expected samples of shape \(n, 4, 2\), found \(20, 39\)"):
        assessment.assess("dw4", np.load(tmp_path / "x.npy"))
    with pytest.raises(UserError, match="native needs a run"):
        assessment.assess("lj13", x, likelihood="native")
    (tmp_path / "x.xyz").write_text("not a number\n")
    with pytest.raises(UserError, match="not a readable extxyz"):
        samples.read(tmp_path / "x.xyz")
