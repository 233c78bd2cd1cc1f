"""Samples in files: what is written is what was drawn, with its provenance, in bounded memory."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import outputs, samples, stream
from demx.drawing import Drawing
from demx.errors import UserError
from demx.evaluate.observables import usual
from demx.fitted import Fitted
from demx.space import MeanFree
from demx.targets.function import FunctionTarget
from demx.train import Progress
from demx.types import Samples
from untrained import CLUSTER, FLAT, told, untrained


@pytest.fixture(scope="module")
def plane():
    return untrained("gmm40", FLAT)


@pytest.fixture(scope="module")
def cluster():
    return untrained("lj13", CLUSTER)


def test_samples_of_another_target_are_judged_with_a_word(plane, tmp_path):
    plane.sample_to(tmp_path / "x.npz", 40)
    stored = samples.read(tmp_path / "x.npz")
    said = "The file says that its samples are of dw4; they are judged as samples of gmm40."
    assert said not in demx.assess("gmm40", stored, n=20).verdict
    other = stored._replace(origin=samples.Origin("dw4", "idem", 0))
    assert said in demx.assess("gmm40", other, n=20).verdict


def test_one_set_of_samples_in_every_format(cluster, tmp_path):
    """The same numbers and the same provenance, whichever way they are written."""
    drawn = cluster.sample(20, seed=3)
    for suffix in ("npz", "extxyz", "nc"):
        path = tmp_path / "deep" / f"x.{suffix}"
        written = cluster.sample_to(path, 20, seed=3, chunk=7)
        assert written.n == 20 and written.energy_calls == 20
        stored = samples.read(path)
        np.testing.assert_allclose(stored.x, drawn.x, rtol=1e-6)
        assert stored.log_weight is None
        assert stored.origin == samples.Origin("lj13", "idem", 0)
    with np.load(tmp_path / "deep" / "x.npz", allow_pickle=False) as data:
        about = json.loads(str(data["provenance"]))
        energy = data["energy"]
    expected = {
        "demx": demx.__version__, "target": "lj13", "method": "idem", "run": "runs/here",
        "training_seed": 0, "training_energy_calls": 321, "n": 20, "sampling_seed": 3,
        "sampling_energy_calls": 20,
    }  # fmt: skip
    assert about == expected
    import arviz
    import ase.io

    frames = ase.io.read(tmp_path / "deep" / "x.extxyz", ":")
    np.testing.assert_allclose([f.get_potential_energy() for f in frames], energy, rtol=1e-6)
    assert {k: frames[0].info.get(k) for k in expected if k != "demx"} == {
        k: v for k, v in expected.items() if k != "demx"
    }
    inference = arviz.from_netcdf(tmp_path / "deep" / "x.nc")
    assert inference.posterior["x"].dims == ("chain", "draw", "particle", "axis")
    np.testing.assert_array_equal(inference.sample_stats["energy"][0], energy)
    assert expected.items() <= inference.posterior.attrs.items()
    assert not list(tmp_path.glob("**/*partial*")) and not list(tmp_path.glob("**/.spool*"))


def test_weights_are_in_every_format(plane, tmp_path):
    drawn = plane.sample(30, weights=True)
    for suffix in ("npz", "nc"):
        written = plane.sample_to(tmp_path / f"w.{suffix}", 30, weights=True, chunk=8)
        stored = samples.read(tmp_path / f"w.{suffix}")
        np.testing.assert_array_equal(stored.log_weight, drawn.log_weight)
        assert written.log_z == plane.log_z(30)
    import arviz

    stats = arviz.from_netcdf(tmp_path / "w.nc").weighted_sample_stats
    np.testing.assert_array_equal(stats["log_prob"][0], drawn.log_prob)
    assert stats.attrs["weights"] == 1 and stats.attrs["sampling_energy_calls"] == 60
    plane.sample_to(tmp_path / "w.csv", 30, weights=True)
    about, lines = told(tmp_path / "w.csv")
    assert {"effective_share", "psis_k", "log_z", "target"} <= set(about)
    share = np.exp(drawn.log_weight - drawn.log_weight.max())
    share /= share.sum()
    mean = {line["quantity"]: float(line["mean"]) for line in lines}
    assert mean["x0"] == pytest.approx(float((share * drawn.x[:, 0]).sum()), rel=1e-5)


def test_frames_carry_weights(cluster, tmp_path):
    """Weights of infinite size too: a sample of no finite energy has weight 0."""
    weight = jnp.asarray([0.5, -jnp.inf, 1e-7])
    x = jnp.arange(3 * 39.0).reshape(3, 13, 3)
    method = cluster.method._replace(sample=lambda *_: Samples(x, weight, bad=1))
    swarm = Fitted(cluster.target, method, cluster.state, cluster.config, cluster.progress)
    written = swarm.sample_to(tmp_path / "w.extxyz", 3)
    stored = samples.read(tmp_path / "w.extxyz")
    np.testing.assert_allclose(stored.log_weight, weight, rtol=1e-6)
    np.testing.assert_allclose(stored.x, x)
    assert written.log_z is None and "1 of 3 samples have no finite density" in written.no_log_z


def test_species_have_symbols_of_their_own(tmp_path):
    """The n-th species is the element of that atomic number; a particle without one is X."""
    import ase.io

    energy = lambda x: jnp.sum(jnp.asarray([1.0, 2.0, 1.0, 2.0])[:, None] * x * x)  # noqa: E731
    target = FunctionTarget(energy, MeanFree(4, 2, (9, 5, 9, 5)))
    settings = {"sampler": {"num_samples": 16, "outer_steps": 1}}
    mixed = untrained(target, settings, "importance", scale=1.0)
    mixed.sample_to(tmp_path / "x.extxyz", 20)
    frames = ase.io.read(tmp_path / "x.extxyz", ":")
    assert [frame.get_chemical_symbols() for frame in frames] == [["H", "X", "H", "X"]] * 20
    assert tuple(frames[0].numbers) == target.space.several and "angstrom" not in frames[0].info
    found = demx.assess(target, samples.read(tmp_path / "x.extxyz"), n=10)
    assert found.samples.bad == 0
    many = FunctionTarget(energy, MeanFree(100, 3, tuple(range(100))))
    with pytest.raises(UserError, match="names for 87 species, and there are 100"):
        outputs.check(tmp_path / "x.extxyz", many)


def test_a_summary_of_clusters(cluster, tmp_path):
    cluster.sample_to(tmp_path / "s.csv", 200, chunk=64)
    about, lines = told(tmp_path / "s.csv")
    assert about["target"] == "lj13" and about["sampling_energy_calls"] == "200"
    assert [line["quantity"] for line in lines] == usual(cluster.target.space)
    x = np.asarray(cluster.sample(200).x, float)
    radius = np.sqrt((x**2).sum(axis=2).mean(axis=1))
    line = next(line for line in lines if line["quantity"] == "radius_of_gyration")
    assert float(line["mean"]) == pytest.approx(radius.mean(), rel=1e-5)
    assert float(line["mean_se"]) == pytest.approx(radius.std(ddof=1) / 200**0.5, rel=1e-5)
    assert float(line["q50"]) == pytest.approx(np.median(radius), rel=1e-5)


def test_what_cannot_be_written_is_refused_before_drawing(plane, tmp_path, monkeypatch):
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match=r"expected a name that ends in \.npz, .* got '\.txt'"):
        plane.sample_to(tmp_path / "x.txt", 5)
    with pytest.raises(UserError, match="extxyz holds particles"):
        plane.sample_to(tmp_path / "x.extxyz", 5)
    with pytest.raises(UserError, match="expected a file, found a directory"):
        (tmp_path / "d.npz").mkdir()
        plane.sample_to(tmp_path / "d.npz", 5)
    with pytest.raises(UserError, match="chunk: expected a whole number"):
        plane.sample_to(tmp_path / "x.npz", 5, chunk=0)
    with pytest.raises(UserError, match="n: expected a whole number"):
        plane.sample_to(tmp_path / "x.npz", 0)
    with pytest.raises(UserError, match=r"x\.npz: cannot be written"):
        (tmp_path / "file").write_text("")
        plane.sample_to(tmp_path / "file" / "x.npz", 5)


def test_a_failure_leaves_the_old_file(plane, tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    plane.sample_to(path, 5)
    before = path.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr("demx.outputs.npz._add", broken)
    with pytest.raises(UserError, match="disk full"):
        plane.sample_to(path, 6)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_chunks_change_nothing(cluster, monkeypatch):
    """Blocks follow from the space; few samples are the first of many, sample is the stream."""
    monkeypatch.setattr(stream, "FLOATS", 1)
    assert stream.block_rows(cluster.target.space) == 1024
    whole = cluster.sample(2500)
    for chunk in (300, 1024, 5000):
        parts = list(cluster.stream(2500, chunk=chunk))
        assert max(len(part.x) for part in parts) <= chunk
        np.testing.assert_array_equal(jnp.concatenate([part.x for part in parts]), whole.x)
    np.testing.assert_array_equal(cluster.sample(1024).x, whole.x[:1024])
    # no two blocks are the same
    assert len(np.unique(np.asarray(whole.x)[:, 0, 0])) > 2400


def test_islands_are_numbered_on(plane, monkeypatch):
    """Swarms of different blocks are different islands; what they cost is added."""
    monkeypatch.setattr(stream, "FLOATS", 1)

    def swarm(key, state, n, smc):
        x = jax.random.normal(key, (n, 2))
        return Samples(x, jnp.zeros(n), energy_calls=3 * n, island=jnp.arange(n) // 512, bad=1)

    method = plane.method._replace(anneal=swarm)
    swarms = Fitted(plane.target, method, plane.state, plane.config, plane.progress)
    whole = swarms.sample(2500, correct="smc")
    assert [*np.bincount(whole.island)] == [512] * 4 + [452]
    assert whole.energy_calls == 7500 and whole.bad == 3
    parts = list(swarms.stream(2500, correct="smc", chunk=700))
    np.testing.assert_array_equal(np.concatenate([p.island for p in parts]), whole.island)
    assert sum(p.energy_calls for p in parts) == 7500 and sum(p.bad for p in parts) == 3


def test_chains_are_drawn_in_one_go(monkeypatch):
    """Two calls would both go on from the same state."""
    sizes = []
    chains = untrained("gmm40", {"sampler": {"num_chains": 4, "relax_steps": 2}}, method="hmc")
    drawn = lambda key, state, n: sizes.append(n) or Samples(jnp.zeros((n, 2)))  # noqa: E731
    chains.method = chains.method._replace(sample=drawn)
    monkeypatch.setattr(stream, "FLOATS", 1)
    parts = list(chains.stream(3000, chunk=1000))
    assert sizes == [3000] and [len(part.x) for part in parts] == [1000] * 3


def test_the_evidence_of_nested_sampling_is_kept(tmp_path, monkeypatch):
    """In every file, and as a metric beside the true value; chains get the calls of the samples."""
    from demx.evaluate.equilibrium import Drawn

    small = {"num_live": 32, "num_delete": 8, "remaining": 0.1}
    runs = untrained("gmm40", {"sampler": small}, "nested")
    runs.progress = Progress()
    value, error = runs.sample(30).log_z
    for suffix in ("npz", "nc", "csv"):
        runs.sample_to(tmp_path / f"x.{suffix}", 30)
    import arviz

    with np.load(tmp_path / "x.npz", allow_pickle=False) as data:
        kept = json.loads(str(data["provenance"]))
    inference = arviz.from_netcdf(tmp_path / "x.nc").posterior.attrs
    about, _ = told(tmp_path / "x.csv")
    for found in (kept, inference, about):
        assert float(found["log_z"]) == pytest.approx(value)
        assert float(found["log_z_standard_error"]) == pytest.approx(error)
    given = []

    def within(key, target, n, calls, *_):
        given.append(calls)
        x = np.asarray(target.sample(key, n))
        return Drawn(x, np.asarray(jax.vmap(target.log_density)(x)), {}, calls)

    monkeypatch.setattr("demx.assessment.samples_within", within)
    monkeypatch.setattr("demx.assessment.FEWEST_MCMC", 1)
    found = runs.evaluate(50, repeats=2, mcmc_at_most=10**9)
    assert found.mcmc is not None and given[0] == found.mcmc_calls > 1000
    metric = found.metrics["log_z"]
    assert metric.floor == 0 and metric.two_sided and 0 < metric.standard_error < 2
    assert runs.evaluate(50, repeats=2, mcmc_at_most=100).mcmc_calls == 100


def peak(action) -> int:
    """Kilobytes by which resident memory rises at most while something is done."""
    status = Path("/proc/self/status")

    def read(name):
        line = next(s for s in status.read_text().splitlines() if s.startswith(name))
        return int(line.split()[1])

    Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS")
    action()
    return read("VmHWM") - before


@pytest.mark.slow  # 200 000 samples are written
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_number(cluster, tmp_path, monkeypatch):
    """200 blocks take no more than two, but for a quarter of what all the samples would take."""
    monkeypatch.setattr(stream, "FLOATS", 1)
    block, size = stream.block_rows(cluster.target.space), 39
    write = lambda n: cluster.sample_to(tmp_path / "many.npz", n, chunk=1000)  # noqa: E731
    write(2 * block)
    few, many = peak(lambda: write(2 * block)), peak(lambda: write(200 * block))
    print(f"peak of {2 * block}: {few} kB, of {200 * block}: {many} kB")
    assert many < few + 200 * block * size * 4 / 1024 / 4
    assert len(samples.read(tmp_path / "many.npz").x) == 200 * block


def test_what_stays_in_memory_is_a_block(cluster, tmp_path, monkeypatch):
    """Of the arrays of JAX that live while a file is written, none grows with n."""
    monkeypatch.setattr(stream, "FLOATS", 1)
    largest = []
    from demx.outputs.spool import Spool

    real = Spool.add

    def spy(self, columns):
        largest.append(max(a.nbytes for a in jax.live_arrays()))
        real(self, columns)

    monkeypatch.setattr(Spool, "add", spy)
    cluster.sample_to(tmp_path / "x.npz", 2048)
    few, largest = max(largest), []
    cluster.sample_to(tmp_path / "x.npz", 6144)
    assert max(largest) == few
