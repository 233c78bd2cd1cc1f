"""Correction of samples: Metropolis moves, and resampling by weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from cases import TARGETS
from demx.correction import equal_weights, metropolis
from demx.drawing import How
from demx.energy import Evaluation
from demx.errors import UserError
from demx.glance import Glance
from demx.resolve import named_target
from demx.samples import Stored
from demx.space import Euclidean, log_normal, normal
from demx.stiffness import local_variance
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from demx.types import Method, Samples


def evaluation(score, log_density=0.0):
    count = len(score)
    return Evaluation(jnp.full(count, log_density), score, jnp.zeros(count, bool))


def test_local_variance_of_a_normal(key):
    space = TARGETS["lj13"].space
    x = 0.3 * normal(key, space, (2000,))
    found = float(local_variance(evaluation(-x / 0.09), space, 1e3))
    # the median of χ²_36/36 is 1 - 2/(9·36) cubed; four standard errors of 2000 draws
    median = (1 - 2 / (9 * 36)) ** 3
    assert found == pytest.approx(0.09 / median, rel=4 * 1.25 * (2 / 36 / 2000) ** 0.5)


def test_local_variance_of_a_flat_energy_is_the_widest():
    space = TARGETS["lj13"].space
    flat = jnp.zeros((10, 13, 3))
    assert float(local_variance(evaluation(flat), space, 2.5)) == pytest.approx(2.5)
    outside = evaluation(flat + 1.0, -jnp.inf)
    assert float(local_variance(outside, space, 2.5)) == pytest.approx(2.5)


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_moves_carry_samples_to_the_target(kind, key, seed):
    """From a normal far too wide to a correlated one: energy of the right mean, 4 s.e."""

    def energy(x):
        return -log_normal(TARGETS["gmm40"].space, jnp.stack([x[0] * 4, x[1] - x[0]]), 1.0)

    target = named_target(energy, {}, dim=2)[1]
    start = Samples(5 * normal(key, target.space, (2048,)), energy_calls=7)
    moved = metropolis(key, target, start, kind, 320)
    energies = jax.vmap(energy)(moved.x)
    # E - log 2π is half a χ² of two degrees of freedom: mean 1, variance 1
    assert abs(float(energies.mean()) - np.log(2 * np.pi) - 1) < 4 / 2048**0.5
    assert 0.4 < moved.acceptance <= 1 and moved.bad == 0
    per_sample = 1 + (320 if kind == "mala" else 40 * 8)
    assert moved.energy_calls == 7 + 256 + 2048 * per_sample


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_a_sample_that_is_nan_does_not_stop_the_others(kind, key):
    """They move as far as they would without it, it is counted, and so is what it proposed."""
    target = TARGETS["many_well"]
    x = 3 * normal(key, target.space, (64,))
    whole = metropolis(key, target, Samples(x), kind, 32)
    drawn = Samples(x.at[5].set(jnp.nan), bad_calls=2)
    moved = metropolis(key, target, drawn, kind, 32)
    others = np.delete(np.arange(64), 5)
    far = [np.linalg.norm(np.asarray(m.x - x)[others], axis=1).mean() for m in (whole, moved)]
    assert far[1] > 0.5 * far[0] > 0
    assert moved.bad == 1 and whole.bad == 0 and jnp.isnan(moved.x[5]).all()
    transitions = 32 if kind == "mala" else 4
    assert moved.bad_calls == 2 + transitions and whole.bad_calls == 0


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_copies_that_fill_a_chunk_are_not_counted(kind, key):
    """65 samples are moved as 128, the others copies of the first 63, which are nan here."""
    target = FunctionTarget(lambda x: 0.0 * jnp.sum(x), Euclidean(2))
    x = normal(key, target.space, (65,)).at[:63].set(jnp.nan)
    moved = metropolis(key, target, Samples(x), kind, 32)
    # the energy is flat: the other two accept every move
    assert moved.acceptance == pytest.approx(2 / 65, rel=1e-5)
    assert moved.bad == 63 and moved.bad_calls == 63 * (32 if kind == "mala" else 4)


def test_a_step_size_that_is_not_finite_is_refused(key):
    target = FunctionTarget(lambda x: 0.0 * jnp.sum(x), Euclidean(2))
    nothing = metropolis(key, target, Samples(jnp.full((8, 2), jnp.nan)), "hmc", 16)
    assert nothing.bad == 8
    x = 1e30 * jnp.arange(16.0).reshape(8, 2)
    with pytest.raises(UserError, match="correct: expected samples whose spread tells a step size"):
        metropolis(key, target, Samples(x), "hmc", 16)


def test_a_look_at_weights_that_are_all_zero(key):
    """It says so, instead of ending the run."""
    target = TARGETS["gmm40"]
    nothing = Samples(jnp.zeros((20, 2)), jnp.full(20, -jnp.inf), energy_calls=7)
    method = Method(lambda key: 0, lambda key, s: (0, None), lambda *_: nothing, weighted=True)
    assert Glance(method, target, 20, None)(key, 0) == ({"bad_samples": 20, "validation": 100.0}, 7)


def test_moved_samples_of_weight_zero_stay_bad(key):
    target = TARGETS["gmm40"]
    weight = jnp.where(jnp.arange(64) < 10, -jnp.inf, 0.0)
    drawn = Samples(target.sample(key, 64), log_weight=weight, bad=10)
    assert metropolis(key, target, drawn, "mala", 4).bad == 10


def test_resampled_rows_follow_the_weights(seed):
    with pytest.raises(UserError, match="all weights are zero"):
        equal_weights(np.full(3, -np.inf), 5, seed)
    rows = equal_weights(np.log([0.5, 0.3, 0.2, 1e-30]), 1000, seed)
    counts = np.bincount(rows, minlength=4)
    assert np.abs(counts - [500, 300, 200, 0]).max() <= 1


SMALL = {
    "draws": {"num_samples": 8},
    "network": {"width": 8, "depth": 1, "embedding": 4},
    "training": {"outer_steps": 1, "inner_steps": 2, "batch_size": 8, "new_samples": 8},
    "grid": {"num_steps": 5},
    "evaluation": {"every": 0},
}


def test_corrected_samples_of_a_run(seed):
    """Counts, weights and islands of all kinds; what is not known is refused."""
    fitted = demx.fit("gmm40", seed=seed, settings=SMALL, progress=False)
    moved = fitted.sample(20, correct="mala", correct_steps=10)
    assert moved.x.shape == (20, 2) and moved.log_weight is None
    assert moved.energy_calls == 20 * (1 + 10) + 20
    for n, kind, steps in ((20, "mala", 10), (70, "hmc", 1), (70, "hmc", 300)):
        told = fitted._drawing.calls(n, How(correct=kind, correct_steps=steps))
        assert told == fitted.sample(n, correct=kind, correct_steps=steps).energy_calls
    weighted = fitted.sample(20, correct="hmc", correct_steps=32, weights=True)
    before = fitted.sample(20, weights=True)
    np.testing.assert_array_equal(weighted.log_weight, before.log_weight)
    assert weighted.log_prob is None
    swarm = fitted.sample(600, correct="smc")
    assert swarm.log_weight.shape == (600,) and set(np.asarray(swarm.island)) == {0, 1}
    levels = 9  # as many as 5 midpoint steps take scores
    assert swarm.energy_calls == 600 * (levels * 16 + 1) + 64 * (1 + 2 * levels * 16)
    with pytest.raises(UserError, match="correct: expected mala, hmc or smc, got 'gibbs'"):
        fitted.sample(5, correct="gibbs")
    with pytest.raises(
        UserError, match="correct_steps: expected a whole number of at least 1, got 0"
    ):
        fitted.sample(5, correct="hmc", correct_steps=0)
    found = fitted.evaluate(50, repeats=2, likelihood="none", correct="smc")
    assert found.metrics["w2"].value > 0


def test_weighted_files_are_judged_with_their_weights(seed):
    """Two modes with a quarter and three quarters, made right by weights."""
    target = GaussianMixture(jnp.asarray([[-5.0, 0.0], [5.0, 0.0]]), jnp.ones(2))
    x = np.array(target.sample(jax.random.key(seed), 4000))
    keep = (x[:, 0] > 0) | (np.arange(4000) % 3 == 0)
    x = x[keep]
    weight = np.where(x[:, 0] > 0, 0.0, np.log(3.0)).astype(np.float32)
    plain = demx.assess(target, x, n=500, likelihood="none")
    fair = demx.assess(target, Stored(x, weight), n=500, likelihood="none")
    assert plain.metrics["mode_tv"].value > 0.2 > 0.06 > fair.metrics["mode_tv"].value
    assert any("drawn by their weights" in note for note in fair.samples.notes)
