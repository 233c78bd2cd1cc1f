"""What stands beside corrected samples is of them, or says of whom it is."""

import jax
import numpy as np
import pytest

from demx.correction import equal_weights
from demx.drawing import How, stream_key
from demx.evaluate import verdict, weights
from demx.evaluate.evaluation import Evaluation, Metric
from demx.fitted import Fitted
from untrained import FLAT, untrained

WEIGHED = {"ess", "psis_k", "log_z_is", "log_z_lower"}


@pytest.fixture(scope="module")
def plane():
    return untrained("gmm40", FLAT)


@pytest.mark.parametrize("likelihood", ["auto", "native"])
def test_weights_beside_annealed_samples_are_their_own(likelihood, plane, seed):
    """Those of the particles that were resampled, all of them, for no further calls."""
    found = plane.evaluate(300, repeats=2, seed=seed, likelihood=likelihood, correct="smc")
    key, how = stream_key(seed, "evaluate"), How(correct="smc")
    swarms = [plane._drawing.draw(jax.random.fold_in(key, i), 300, how) for i in range(2)]
    log_weight = np.concatenate([swarm.log_weight for swarm in swarms])
    np.testing.assert_array_equal(found.log_weight, log_weight)
    island = np.repeat([0, 1], 300)  # an island each
    assert found.metrics["log_z_is"][:2] == weights.log_z_is(log_weight, island)
    assert found.metrics["ess"].value == weights.ess(log_weight).value
    assert found.metrics["psis_k"].n == 600 and "nll" not in found.metrics
    assert found.density == "the weights of annealed SMC"
    assert found.samples.energy_calls == 600 + sum(swarm.energy_calls for swarm in swarms)
    rows = equal_weights(np.asarray(swarms[0].log_weight), 300, 0)
    drawn = plane._drawing.unweighted(key, 300, 2, how).samples
    np.testing.assert_array_equal(drawn.x[:300], swarms[0].x[rows])


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_moved_samples_have_no_density(kind, plane):
    found = plane.evaluate(50, repeats=2, correct=kind, correct_steps=8)
    assert not WEIGHED & set(found.metrics) and found.density is None
    assert f"left out: after moves of {kind} the density" in found.verdict[-1]


def test_a_density_asked_for_beside_moved_samples_says_whose_it_is(plane):
    options = {"repeats": 2, "likelihood": "native", "likelihood_n": 100}
    found = plane.evaluate(50, correct="mala", correct_steps=8, **options)
    before = plane.evaluate(50, **options)
    assert set(found.metrics) >= WEIGHED | {"nll"}
    assert found.metrics["log_z_is"] == before.metrics["log_z_is"]
    assert found.density == "the sampler's own density, without correction"
    assert any("are of the uncorrected sampler" in said for said in found.verdict)
    assert not any("uncorrected" in said for said in before.verdict)


def test_without_a_reference_weights_tell_the_mean_energy(plane, monkeypatch):
    """Of the flow's samples, whose energies their weights and densities hold: no call more."""
    options = {"repeats": 2, "likelihood": "native", "likelihood_n": 400}
    known = plane.evaluate(50, **options)
    monkeypatch.setattr(Fitted, "reference", lambda self: None)
    found = plane.evaluate(50, **options)
    assert "energy_mean_weighted" not in known.metrics
    drawn = plane._drawing.draw(stream_key(1, "sample"), 400, How(weights=True))
    energies = -np.asarray(jax.vmap(plane.target.log_density)(drawn.x))
    expected = weights.weighted_mean(np.asarray(drawn.log_weight), energies)
    np.testing.assert_allclose(found.metrics["energy_mean_weighted"][:2], expected, rtol=1e-3)
    assert found.samples.energy_calls <= known.samples.energy_calls


@pytest.mark.parametrize(
    ("plain", "k", "said"), [(0.3, 0.3, True), (1.0, 0.3, False), (0.3, 0.8, False)]
)
def test_samples_whose_mean_energy_the_weights_deny_are_told(plain, k, said):
    """Beyond 7 joint standard errors, √(0.1² + 0.2²) here, and only by weights one can trust."""
    metrics = {
        "energy_mean": Metric(plain, 0.1), "energy_mean_weighted": Metric(2.0, 0.2),
        "psis_k": Metric(k, 0.1), "ess": Metric(0.5, 0.1, 1.0), "log_z_is": Metric(0.0, 0.1),
        "log_z_lower": Metric(0.0, 0.1),
    }  # fmt: skip
    for share in (0.5, 0.05):  # also of weights that rest on a few samples
        metrics["ess"] = Metric(share, 0.01, 1.0)
        told = verdict.sentences(Evaluation(metrics, 10, 1, 0, 0))
        assert any("standard errors from that by the weights, 2." in s for s in told) == said


def test_perfect_samples_are_not_accused_by_weights_of_a_density_that_is_narrow(rng):
    """q = N(0, 0.75²)², p = N(0, 1)²: where the tail was missed, errors are too small.

    So some of the sets are beyond 3.5 joint errors, and none is accused.
    """
    told, far = 0, 0
    for _ in range(200):
        plain = 0.5 * np.sum(rng.normal(size=(10_000, 2)) ** 2, axis=1)
        energies = 0.5 * np.sum((0.75 * rng.normal(size=(1000, 2))) ** 2, axis=1)
        log_weight = energies / 0.75**2 - energies
        by_weight = Metric(*weights.weighted_mean(log_weight, energies))
        mean = Metric(float(plain.mean()), float(plain.std()) / 100)
        told += bool(verdict._by_weight(mean, by_weight))
        far += abs(mean.value - by_weight.value) > 3.5 * np.hypot(mean[1], by_weight[1])
    print(told, far)
    assert told == 0 < far
