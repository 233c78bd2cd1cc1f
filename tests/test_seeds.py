"""Seeds and counts as users hand them over: of NumPy too, and refused before any work is done."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx.drawing import Drawing
from demx.errors import UserError
from demx.fitted import Fitted
from demx.types import Samples
from demx.whole import SEEDS, check_seed, whole
from untrained import FLAT, told, untrained

REFUSED = [-1, SEEDS, 2**63, 1.5, "1", None, np.arange(2)]


@pytest.fixture(scope="module")
def plane():
    return untrained("gmm40", FLAT)


@pytest.mark.parametrize("seed", [3, np.int64(3), np.uint8(3), np.array(3), jnp.asarray(3)])
def test_whole_numbers_of_all_kinds(seed):
    assert type(check_seed(seed)) is int and check_seed(seed) == 3
    assert type(whole("n", seed, 1)) is int


@pytest.mark.parametrize("seed", REFUSED, ids=repr)
def test_other_seeds_are_refused(seed):
    with pytest.raises(UserError, match="seed: expected a whole number from 0 to 4294967295, got"):
        check_seed(seed)


def test_the_largest_seed_is_one_of_its_own(plane):
    """JAX keeps 32 bits: 2**32 would be 0 once more, so it is refused."""
    assert check_seed(SEEDS - 1) == 2**32 - 1
    assert not np.array_equal(plane.sample(4, seed=SEEDS - 1).x, plane.sample(4, seed=0).x)


def test_files_by_seeds_of_numpy(plane, tmp_path):
    """Provenance is written when all is drawn: there a seed must not be refused."""
    options = {"correct": "mala", "correct_steps": np.int64(3), "chunk": np.int64(4)}
    drawn = plane.sample(np.int64(6), seed=np.int64(5), correct="mala", correct_steps=3)
    for suffix in ("npz", "nc", "csv"):
        path = tmp_path / f"s.{suffix}"
        assert plane.sample_to(path, np.int64(6), seed=np.int64(5), **options).n == 6
    with np.load(tmp_path / "s.npz", allow_pickle=False) as data:
        about = json.loads(str(data["provenance"]))
        np.testing.assert_array_equal(data["x"], drawn.x)
    assert about["sampling_seed"] == 5 and about["n"] == 6 and about["correct_steps"] == 3
    assert told(tmp_path / "s.csv")[0]["sampling_seed"] == "5"


def test_a_run_by_a_seed_of_numpy(tmp_path):
    energy = lambda x: jnp.sum(x * x)  # noqa: E731
    settings = {"sampler": {"num_samples": 16, "outer_steps": 1}}
    options = {"dim": 2, "method": "importance", "scale": 1.0, "settings": settings}
    fitted = demx.fit(energy, seed=np.int64(7), directory=tmp_path, progress=False, **options)
    again = demx.fit(energy, seed=7, directory=tmp_path, progress=False, **options)
    assert fitted.config["seed"] == 7 and again.progress.step == 1
    with pytest.raises(UserError, match="seed: expected"):
        demx.fit(energy, seed=-1, directory=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_nothing_is_drawn_for_a_seed_that_is_refused(plane, tmp_path, monkeypatch):
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    for use in (
        lambda: plane.sample(5, seed=-1),
        lambda: plane.stream(5, seed=-1),
        lambda: plane.sample_to(tmp_path / "x.npz", 5, seed=2**63),
        lambda: plane.evaluate(10, seed=-1),
        lambda: plane.log_z(seed=-1),
        lambda: demx.assess("gmm40", np.zeros((20, 2)), n=10, seed=-1),
    ):
        with pytest.raises(UserError, match="seed: expected"):
            use()
    with pytest.raises(UserError, match="repeats: expected a whole number of at least 1, got 0"):
        plane.evaluate(10, repeats=0)


def test_samples_whose_weights_are_all_zero_are_kept(plane, tmp_path):
    """Nothing can be resampled, but what was drawn is in the file."""
    import arviz

    from demx import samples

    x, weight = jnp.arange(6.0).reshape(3, 2), jnp.full(3, -jnp.inf)
    method = plane.method._replace(sample=lambda *_: Samples(x, weight, bad=3))
    swarm = Fitted(plane.target, method, plane.state, plane.config, plane.progress)
    written = swarm.sample_to(tmp_path / "w.nc", 3)
    assert "no posterior, for all weights are zero" in written.told
    stored = samples.read(tmp_path / "w.nc")
    np.testing.assert_array_equal(stored.x, x)
    np.testing.assert_array_equal(stored.log_weight, weight)
    assert "posterior" not in arviz.from_netcdf(tmp_path / "w.nc").groups()
