"""Samples that depend on each other: what is said of them must not take them for independent."""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import samples
from demx.assessment import assess
from demx.classical.nested import Nested, nested
from demx.drawing import How
from demx.evaluate.evaluation import compare
from demx.evaluate.reference import make
from demx.fitted import Fitted
from demx.outputs.netcdf import arranged
from demx.space import Euclidean
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from demx.train import Progress
from demx.types import Method, Samples
from demx.watch import Watch

CHAINS = 16
WORSE = Watch(good=False)


def stuck(n: int, key) -> Samples:
    """Chains at 8 and at -8, each with probability ½, that never change sides."""
    key_side, key_noise = jax.random.split(key)
    side = jax.random.rademacher(key_side, (CHAINS,), float)
    island = jnp.arange(n) % CHAINS
    x = 8 * side[island][:, None] + jax.random.normal(key_noise, (n, 1))
    return Samples(x, energy_calls=n, island=island)


def two_modes() -> GaussianMixture:
    return GaussianMixture(np.array([[8.0], [-8.0]]), np.ones((2, 1)), np.array([0.5, 0.5]))


def sampler() -> Fitted:
    method = Method(lambda key: 0, lambda key, state: (0, None), lambda key, _, n: stuck(n, key))
    about = {"method": "hmc", "target": "two", "seed": 0, "fingerprint": ""}
    return Fitted(two_modes(), method, 0, about, Progress(energy_calls=1))


# of the mean of 16 signs times 8
TRUE = 8 / CHAINS**0.5


def within(error: float) -> bool:
    """8 √(1 - m²)/√15 of signs with mean m: too small only where all are equal, of 2^15 times."""
    return 0.45 * TRUE < error < 1.1 * TRUE


def test_every_chain_method_says_which_chain_a_sample_is_of(key):
    from demx.classical.chains import Hmc, hmc
    from demx.classical.tempering import ParallelTempering, parallel_tempering

    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    small = {"num_chains": 3, "relax_steps": 2, "thin": 1}
    for made in (
        hmc(target, Hmc(**small)),
        parallel_tempering(target, ParallelTempering(**small, num_rungs=2)),
    ):
        drawn = made.sample(key, made.init(key), 7)
        np.testing.assert_array_equal(drawn.island, np.arange(7) % 3)


def test_a_summary_knows_of_chains(tmp_path):
    sampler().sample_to(tmp_path / "s.csv", 640)
    with (tmp_path / "s.csv").open() as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    line = next(line for line in lines if line["quantity"] == "x0")
    assert within(float(line["mean_se"]))


@pytest.mark.parametrize("n", [640, 645])
def test_arviz_sees_chains_that_disagree(n, tmp_path):
    import arviz

    drawn = sampler().sample(n)
    written = sampler().sample_to(tmp_path / "s.nc", n, chunk=100)
    found = arviz.from_netcdf(tmp_path / "s.nc")
    assert found.posterior["x"].shape == (CHAINS, 40, 1)
    assert found.sample_stats["energy"].shape == (CHAINS, 40)
    np.testing.assert_array_equal(found.posterior["x"][3], np.asarray(drawn.x)[3:640:CHAINS])
    assert float(arviz.rhat(found.posterior)["x"][0]) > 1.1  # 1.01 is asked for
    assert float(arviz.ess(found.posterior)["x"][0]) < 64  # of independent draws about 640
    stored = samples.read(tmp_path / "s.nc")
    np.testing.assert_array_equal(stored.x, drawn.x)
    np.testing.assert_array_equal(stored.island, drawn.island)
    assert "16 chains of 40 draws" in written.told
    assert ("one draw more of the first 5 is in rest_posterior" in written.told) == (n == 645)


def test_fewer_samples_than_chains_are_independent(tmp_path):
    import arviz

    sampler().sample_to(tmp_path / "s.nc", 10)
    assert arviz.from_netcdf(tmp_path / "s.nc").posterior["x"].shape == (1, 10, 1)
    assert len(samples.read(tmp_path / "s.nc").x) == 10


def test_copies_of_a_point_stand_side_by_side():
    rows, rest = arranged(np.array([2, 0, 1, 0, 2, 2]))
    assert rows.tolist() == [[1, 3, 2, 0, 4, 5]] and rest.shape == (0, 1)
    rows, rest = arranged(np.zeros(3, int))
    assert rows.tolist() == [[0, 1, 2]] and rest.shape == (0, 1)


def test_errors_of_an_evaluation_are_those_of_chains(seed):
    """The spread of energies and of distances over seeds is what one evaluation says it is."""
    energy = lambda x: 0.5 * jnp.sum((jnp.abs(x) - 8) ** 2) + x[0] / 16  # noqa: E731
    target = FunctionTarget(energy, Euclidean(1))
    reference = make(two_modes(), n=2000)
    print("seed", seed)
    seen = []
    for i in range(12):
        drawn = stuck(2000, jax.random.key(1000 * seed + i))
        found = compare(
            target, np.asarray(drawn.x), reference, n=400, island=np.asarray(drawn.island)
        ).metrics
        seen.append([(found[name].value, found[name].standard_error) for name in NAMES])
    value, error = np.moveaxis(np.array(seen), 2, 0)
    ratio = error.mean(axis=0) / value.std(axis=0, ddof=1)
    # a spread of 12 values is known to 1/√22 = 21 %, the mean of 12 errors from four differences
    # each to 1/√96 = 10 %: together 24 %, of which 4 are allowed; blocks would say a tenth
    assert (abs(np.log(ratio)) < np.log(1 + 4 * 0.24)).all(), ratio


NAMES = ("energy_mean", "w2")


def test_one_chain_has_no_standard_errors():
    x = np.random.default_rng(0).normal(size=(200, 1)).astype(np.float32) + 8
    found = compare(two_modes(), x, make(two_modes(), n=400), n=100, island=np.zeros(200, int))
    assert all(np.isnan(found.metrics[name].standard_error) for name in NAMES)
    assert "there are no standard errors" in found.notes[0]
    assert found.metrics["w2"].at_floor is None
    from demx.evaluate.verdict import sentences, word

    assert word("w2", found.metrics["w2"]) == ""
    said, w2 = sentences(found), found.metrics["w2"]
    assert "it cannot be said how far these are from floors: energy_mean" in said[1]
    assert f"w2 {w2.value:.4g} (floor {w2.floor:.4g})" in said[1]
    assert not any("no reference" in s or "No metric tells" in s for s in said)
    # nor is there more to say where no metric has an error
    alone = {name: found.metrics[name] for name in NAMES}
    assert len(sentences(found._replace(metrics=alone))) == 2


def test_nested_samples_are_worth_no_more_than_their_points(key):
    """800 samples of a run with some 150 effective points: errors of those, within a factor."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    made = nested(target, Nested(num_live=32, num_delete=8))
    drawn = made.sample(key, made.init(key), 800)
    share = np.bincount(np.asarray(drawn.island)) / 800
    effective = 1 / (share**2).sum()
    assert effective < 400
    found = compare(target, np.asarray(drawn.x), n=100, island=np.asarray(drawn.island))
    energy = np.asarray(0.5 * (drawn.x**2).sum(axis=1))
    want = energy.std() / effective**0.5
    assert found.metrics["energy_mean"].standard_error == pytest.approx(want, rel=0.3)


def test_a_file_of_weighted_samples_is_worth_its_effective_number(rng):
    """Weights of a tenth of the samples are 1, others 0: errors of n/10 samples."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    x = rng.normal(size=(2000, 2)).astype(np.float32)
    weight = np.where(np.arange(2000) % 10 == 0, 0.0, -np.inf).astype(np.float32)
    found = assess(target, samples.Stored(x, weight), n=200, likelihood="none")
    energy = 0.5 * (x[::10] ** 2).sum(axis=1)
    want = energy.std(ddof=1) / 200**0.5
    # ten copies of each, exactly
    assert found.metrics["energy_mean"].standard_error == pytest.approx(want, rel=1e-3)


def test_a_sampler_hands_its_chains_on(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "demx.assessment.compare", lambda *a, island, **k: seen.update(n=island) or compare(*a, **k)
    )
    sampler().evaluate(100, repeats=3, likelihood="none")
    np.testing.assert_array_equal(seen["n"], np.arange(300) % CHAINS)


def test_chains_of_other_libraries_are_islands(rng, tmp_path):
    import arviz

    x = rng.normal(size=(4, 50, 2)).astype(np.float32)
    path = Path(tmp_path) / "theirs.nc"
    arviz.from_dict({"x": x}).to_netcdf(path)
    stored = samples.read(path)
    np.testing.assert_array_equal(stored.island, np.arange(200) % 4)
    np.testing.assert_array_equal(stored.x[2::4], x[2])
    assert demx.assess(lambda x: jnp.sum(x**2), stored, dim=2, n=50).samples.bad == 0


WIDE = 2.5  # of the proposal, in standard deviations of the target


def proposal(key, n: int) -> Samples:
    """Draws of N(0, WIDE²) in four dimensions, with weights for the standard normal."""
    x = WIDE * jax.random.normal(key, (n, 4))
    log_weight = -0.5 * jnp.sum(x**2, axis=1) * (1 - WIDE**-2)
    return Samples(x, log_weight, energy_calls=n, bad=2, bad_calls=3)


def swarms(key, n: int) -> Samples:
    """Eight islands: all particles of one are copies of a single draw."""
    of_island = proposal(key, 8)
    island = jnp.arange(n) % 8
    weight = of_island.log_weight[island]
    return Samples(of_island.x[island], weight, energy_calls=n, island=island)


def weighted(draw) -> Fitted:
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(4))
    method = Method(
        lambda key: 0, lambda key, s: (0, None), lambda key, _, n: draw(key, n), weighted=True
    )
    about = {"method": "importance", "target": "normal", "seed": 0, "fingerprint": ""}
    return Fitted(target, method, 0, about, Progress(energy_calls=1))


@pytest.mark.parametrize("draw", [proposal, swarms])
def test_errors_of_resampled_swarms_are_their_spread(draw, seed):
    """Of copies that share a particle, and of particles that share an island."""
    fitted = weighted(draw)
    found = [
        fitted.evaluate(200, repeats=10, seed=100 * seed + i, likelihood="none") for i in range(24)
    ]
    value, error = np.array([one.metrics["energy_mean"][:2] for one in found]).T
    ratio = error.mean() / value.std(ddof=1)
    # a spread of 24 values is known to 1/√46 = 15 %, of which 4 are allowed; copies taken for
    # samples would give 0.3 and 0.1
    assert abs(np.log(ratio)) < np.log(1 + 4 * 0.15), ratio


@pytest.mark.parametrize(
    ("method", "ended", "progress", "said"),
    [
        ("hmc", "budget", Progress(), "Not one outer loop was done: the sampler is untrained."),
        ("idem", "budget", Progress(step=3, kept=3), "ended by its budget, after 3 of 9 outer"),
        ("hmc", "budget", Progress(step=3, kept=3), None),  # R-hat tells of chains
        ("hmc", "interrupted", Progress(step=3), "Training was interrupted, after 3 of 9 outer"),
        ("hmc", None, Progress(step=3), "Training had not ended, after 3 of 9 outer loops."),
        ("hmc", "steps", Progress(step=9, kept=4, watch=WORSE), "The state of outer loop 4 was"),
        ("hmc", "steps", Progress(step=9, kept=9), None),
        ("hmc", "converged", Progress(step=3, kept=3), None),
        ("rdmc", "budget", Progress(), None),
    ],
)
def test_a_verdict_knows_how_training_went(method, ended, progress, said):
    plain = sampler()
    made = plain.method._replace(outer_steps=9)
    about = plain.config | {"method": method}
    fitted = Fitted(plain.target, made, 0, about, progress, ended=ended)
    found = fitted.evaluate(100, repeats=1, likelihood="none")
    notes = found.samples.notes
    assert notes == () if said is None else len(notes) == 1 and said in found.verdict[0]


def test_a_verdict_says_which_state_was_last_looked_at():
    plain = sampler()
    made, about = plain.method._replace(outer_steps=9), plain.config | {"method": "idem"}
    stopped = Fitted(plain.target, made, 0, about, Progress(step=3, kept=2), ended="interrupted")
    assert [*stopped.caveats()] == [
        "Training was interrupted, after 3 of 9 outer loops.",
        "The samples are of outer loop 2, the last that was looked at.",
    ]


def test_what_swarms_tell_is_added_up(key):
    """Islands of different blocks are different; bad ones, of weight 0, are told."""
    fitted = weighted(proposal)
    drawn, _, worth = fitted._drawing.unweighted(key, 50, 4, How())
    assert drawn.bad == 8 and drawn.bad_calls == 12 and drawn.energy_calls == 200
    island = np.asarray(drawn.island).reshape(4, 50)
    assert len(np.unique(island)) == sum(len(np.unique(block)) for block in island)
    for block, x in zip(island, np.asarray(drawn.x).reshape(4, 50, 4), strict=True):
        assert len(np.unique(block)) == len(np.unique(x, axis=0)) < 50
    assert 4 < worth < 100
    found = fitted.evaluate(50, repeats=4, likelihood="none")
    assert found.samples.bad == 8
    assert "drawn by their weights, and are worth at most about" in found.verdict[0]
    one = weighted(swarms)._drawing.unweighted(key, 40, 3, How())[0]
    assert np.asarray(one.island).max() < 24
