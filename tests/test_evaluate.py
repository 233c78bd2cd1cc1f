"""Floors, and samplers that are known to be bad: each is seen by the metric that should see it."""

import functools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from demx.config import build_target
from demx.evaluate import reference, verdict
from demx.evaluate.densities import judge, weight_metrics
from demx.evaluate.evaluation import Cloud, batched_energies, compare, floors
from demx.evaluate.outliers import outliers
from demx.space import Euclidean
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import gmm40

FAR = 4  # standard errors beyond which a bad sampler must be seen


@functools.cache
def sets(name):
    target = build_target(name, {})
    return target, reference.find(name, {}, target)


def unaligned(ruler):
    """The same sets without aligned distances, which take longest and are tested on their own."""
    return reference.Reference(
        ruler.validation, ruler.test, {**ruler.provenance, "invariant": False}
    )


def judged(name, spoil):
    """Metrics of the validation samples, spoiled."""
    target, ruler = sets(name)
    x = spoil(np.random.default_rng(0), np.array(ruler.validation), target)
    return compare(target, x, unaligned(ruler), n=1000)


def gap(found, name):
    return found.metrics[name].gap


def lonely_mode(target) -> tuple[int, np.ndarray]:
    """The mode with the farthest neighbour: no other's samples reach it."""
    modes = np.asarray(target.modes)
    apart = np.linalg.norm(modes[:, None] - modes[None], axis=2) + 1e9 * np.eye(len(modes))
    return int(apart.min(axis=1).argmax()), modes


def nearest(x, modes):
    return np.linalg.norm(x[:, None] - modes[None], axis=2).argmin(axis=1)


@pytest.mark.parametrize("name", ["gmm40", "dw4", "lj13"])
def test_perfect_samples_are_at_the_floor(name):
    found = judged(name, lambda rng, x, target: x)
    assert found.bad == 0 and found.n == 1000 and found.repeats == 10
    for metric, value in found.metrics.items():
        side = abs(value.gap) if value.two_sided else value.gap
        assert side < 4.5, metric
    if name == "gmm40":
        assert found.metrics["modes_hit"].value == 40


def test_a_missing_mode_is_seen():
    def spoil(rng, x, target):
        lonely, modes = lonely_mode(target)
        return x[nearest(x, modes) != lonely]

    found = judged("gmm40", spoil)
    assert found.metrics["modes_hit"].value == 39
    assert verdict.word("modes_hit", found.metrics["modes_hit"]) == "modes missing"
    assert any("1 of 40 modes missing" in s for s in verdict.sentences(found))
    assert gap(found, "mode_tv") > FAR


def test_wrong_mode_weights_are_seen():
    def spoil(rng, x, target):
        """Weights off by 30 %: half of the modes have 1.3, the other half 0.7 of their mass."""
        half = nearest(x, np.asarray(target.modes)) % 2 == 0
        return x[
            rng.choice(len(x), len(x), p=np.where(half, 1.3, 0.7) / np.where(half, 1.3, 0.7).sum())
        ]

    assert gap(judged("gmm40", spoil), "mode_tv") > FAR


@pytest.mark.parametrize("name", ["gmm40", "dw4", "lj13"])
def test_shifted_energies_are_seen(name):
    """Energies 0.5 too high: the mean sees it, and so do the distances between distributions."""
    target, ruler = sets(name)
    ruler = unaligned(ruler)
    energies = batched_energies(target, ruler.validation) + 0.5
    found = compare(target, ruler.validation, ruler, n=1000, energies=energies)
    assert gap(found, "energy_mean") > FAR and gap(found, "energy_median") > FAR
    if name != "lj13":  # its energies spread by 7: half a unit drowns in blocks of a thousand
        assert gap(found, "energy_w1") > FAR and gap(found, "energy_w2") > FAR
    assert found.energy_calls == 0


@pytest.mark.parametrize("name", ["dw4", "lj13"])
def test_a_shrunk_cluster_is_seen(name):
    found = judged(name, lambda rng, x, target: 0.97 * x)
    seen = {m for m in ("distance_w2", "distance_tv", "energy_w2") if gap(found, m) > FAR}
    assert {"distance_w2", "energy_w2"} & seen, found.metrics


@pytest.mark.parametrize("name", ["dw4", "lj13"])
def test_a_little_gas_is_seen(name):
    def spoil(rng, x, target):
        gas = 3 * rng.normal(size=x.shape)
        gas -= gas.mean(axis=1, keepdims=True)
        return np.where(rng.random((len(x), 1, 1)) < 0.05, gas, x).astype(np.float32)

    found = judged(name, spoil)
    for metric in ("energy_w2", "energy_w1", "distance_w2"):
        assert gap(found, metric) > FAR, metric
    assert any("not yet perfect" in s for s in verdict.sentences(found))


def test_raw_w2_is_called_saturated_where_it_is():
    """On LJ-13 all particles at the origin score as well as perfect samples."""
    collapsed = judged("lj13", lambda rng, x, target: x * 1e-2)
    metric = collapsed.metrics["w2"]
    assert metric.value < metric.floor and metric.saturated
    assert verdict.word("w2", metric) == "says little"
    assert not judged("gmm40", lambda rng, x, target: x).metrics["w2"].saturated


def test_standard_error_of_one_block_agrees_with_many_blocks():
    """The fifths' rule on single blocks, against the spread of 20 blocks of the same size."""
    target, ruler = sets("dw4")
    plain = unaligned(ruler).with_floors(500, ruler.provenance["floors"]["1000"])
    blocks = [
        compare(target, ruler.validation[i : i + 500], plain, n=500) for i in range(0, 10000, 500)
    ]
    for name in ("w2", "energy_w1", "distance_tv"):
        values = np.array([b.metrics[name].value for b in blocks])
        claimed = np.mean([b.metrics[name].standard_error for b in blocks])
        assert 0.4 < claimed / values.std(ddof=1) < 2.5, name


def test_bad_samples_are_counted_and_left_out():
    target, ruler = sets("gmm40")
    x = np.array(ruler.validation[:1000])
    x[0] = np.nan
    found = compare(target, x, ruler, n=500)
    assert found.bad == 1 and "1 samples are not finite" in verdict.sentences(found)[0]
    nothing = compare(target, np.full((40, 2), np.nan), ruler)
    assert nothing.metrics == {} and nothing.bad == 40
    assert "nothing can be said" in verdict.sentences(nothing)[0]


def test_too_few_samples():
    with pytest.raises(ValueError, match="expected at least 10 samples, got 5"):
        compare(gmm40(), np.zeros((5, 2)))
    with pytest.raises(ValueError, match="expected blocks of at least 10 samples, got 3"):
        compare(gmm40(), np.zeros((50, 2)), n=3)


def test_without_a_reference_the_verdict_says_so():
    found = compare(gmm40(), np.zeros((50, 2)))
    assert set(found.metrics) == {"energy_mean", "energy_median"}
    assert "no reference" in verdict.sentences(found)[0]


@pytest.mark.parametrize("name", ["gmm40", "dw4", "lj13", "lj55"])
def test_a_mean_energy_far_above_the_median_is_told(name):
    """One sample in a hundred lies far outside; perfect samples are not accused."""
    target, ruler = sets(name)
    x = np.array(ruler.validation[:1000])
    told = [
        any("far above the median" in s for s in verdict.sentences(compare(target, points)))
        for points in (
            x,
            np.where(np.arange(1000).reshape(-1, *(1,) * (x.ndim - 1)) % 100, x, 30 * x),
        )
    ]
    assert told == [False, True]


@pytest.mark.parametrize("dof", [1, 2])
def test_no_mean_energy_of_perfect_chains_is_called_far_above_the_median(dof, seed):
    """½χ² has the mean above the median, but a width that four chains hardly know is not asked.

    By Markov's law the far ones raise the mean by a width in a share of at most E[(E - m) 1_far]/w,
    w at least 1 kT and "far" 10 of them above the upper quartile: 4·10⁻⁵ with one dof, 1.3·10⁻⁴
    with two, and twice that for quartiles that are those of 1000 samples. Of 200 sets, + 4σ: < 1.
    """
    n, sets, rng = 1000, 200, np.random.default_rng(seed)
    print("seed", seed)
    law = stats.chi2(dof, scale=0.5)
    far = law.ppf(0.75) + 10
    most = 2 * sets * law.expect(lambda e: e - law.median(), lb=far, ub=200)
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(dof))
    alarms = 0
    for _ in range(sets):
        x = rng.normal(size=(n, dof)).astype(np.float32)
        energies = 0.5 * (x * x).sum(axis=1)
        found = compare(target, x, energies=energies, island=np.arange(n) % 4)
        alarms += any("far above the median" in said for said in verdict.sentences(found))
    assert most + 4 * most**0.5 < 1
    assert alarms == 0


def test_huge_energies_of_chains_are_told_without_a_correction():
    """Three of a thousand: chains are told to go on, others to be corrected."""
    x = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    energies = 0.5 * (x * x).sum(axis=1)
    energies[[1, 500, 777]] = 1e6
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(2))
    for island, advice in ((None, "--correct hmc"), (np.arange(1000) % 4, "go on for longer")):
        said = verdict.sentences(compare(target, x, energies=energies, island=island))
        told = next(one for one in said if "far above the median" in one)
        assert "3 of 1000 samples have energies that p hardly knows" in told
        assert advice in told and ("correct" in told) == (island is None)
    # 3 kT more are no outliers, however narrow the bulk of the others is
    assert not outliers(np.where(np.arange(1000) % 100, 0.0, 3.0)).telling


def test_weights_are_judged(seed):
    rng = np.random.default_rng(seed)
    light = weight_metrics(0.1 * rng.normal(size=2000), log_z=0.0)
    assert verdict.word("psis_k", light["psis_k"]) == "weights reliable"
    heavy = weight_metrics(rng.exponential(1.2, size=2000))
    found = compare(gmm40(), np.zeros((50, 2)))
    found = found._replace(metrics=found.metrics | heavy)
    assert any("cannot be trusted" in s for s in verdict.sentences(found))


def test_mass_that_weights_did_not_meet_is_told(seed):
    """p = 0.9 N(0, 1) + 0.1 N(20, 1), q = N(0, 1) + a touch of the other: w = 0.9 or huge."""
    log_w = np.log(0.9) + 1e-3 * np.random.default_rng(seed).normal(size=1000)
    found = compare(gmm40(), np.zeros((50, 2)))
    known = found._replace(metrics=found.metrics | weight_metrics(log_w, log_z=0.0))
    assert any("do not trust them" in s for s in verdict.sentences(known))
    of_reference = np.where(np.arange(1000) % 10 == 0, np.log(0.1 / 1e-6), np.log(0.9))
    for backward, told in ((of_reference, True), (log_w, False)):
        more, notes = judge(log_w, None, None, None, backward=backward)
        said = verdict.sentences(found._replace(metrics=found.metrics | more))
        assert any("drawn too rarely" in s for s in said) == told and not notes


def test_what_a_density_cannot_say_is_said(seed):
    """Zero weights and unfinished solves are counted in notes, never averaged away."""
    rng = np.random.default_rng(seed)
    log_weight = 0.1 * rng.normal(size=500)
    log_weight[:3] = -np.inf
    log_prob, energies = rng.normal(size=500), rng.normal(size=500)
    log_prob[0] = np.nan
    found, notes = judge(log_weight, log_prob, energies, 0.0)
    assert {"ess", "nll", "log_z_upper"} <= set(found)
    assert "3 of 500 weights are 0" in notes[0] and "At 1 of 500" in notes[1]
    found, notes = judge(np.full(500, -np.inf), np.full(500, np.nan), energies, None)
    assert found == {} and len(notes) == 4


def test_few_perfect_samples_may_miss_modes():
    """A hundred exact samples do not reach 40 modes, and are not blamed for it."""
    target, ruler = sets("gmm40")
    found = compare(target, ruler.validation[:100], ruler, n=50)
    assert found.metrics["modes_hit"].value < 40
    assert verdict.word("modes_hit", found.metrics["modes_hit"]) == "all"


def test_modes_are_counted_of_all_there_are():
    """Not of those that so few perfect samples meet: of 30 draws 40 (1 - (39/40)³⁰) = 21 modes, or
    some more, since the modes overlap."""
    target, ruler = sets("gmm40")
    far = np.full((30, 2), 1e3, np.float32) + np.random.default_rng(0).normal(size=(30, 2))
    said = " ".join(verdict.sentences(compare(target, far.astype(np.float32), ruler, n=30)))
    assert re.search(r"40 of 40 modes missing \(perfect samples of that number miss 1\d\)", said)


def test_a_reference_that_failed_is_announced():
    target, ruler = sets("dw4")
    about = {**ruler.provenance, "invariant": False}
    about["sets"] = {"test": {"passes": {"rhat": False}}}
    found = compare(
        target, ruler.validation, reference.Reference(ruler.validation, ruler.test, about)
    )
    assert "did not meet its diagnostics" in verdict.sentences(found)[0]


@pytest.mark.parametrize("name", ["gmm40", "dw4", "lj13", "lj55"])
def test_shipped_floors_can_be_reproduced(name):
    """The floors that ship are what the sets give (the cheap ones, at n = 1000)."""
    target, ruler = sets(name)
    again = floors(target, unaligned(ruler), 1000)
    known = ruler.provenance["floors"]["1000"]
    for metric, (value, error) in again.items():
        assert known[metric] == pytest.approx([value, error], rel=1e-3, abs=1e-4), metric


def test_clouds_are_cut_alike():
    cloud = Cloud(np.arange(6.0).reshape(3, 2), np.arange(3.0))
    assert cloud[1:].energy.tolist() == [1, 2] and cloud[1:].x[0].tolist() == [2, 3]


def test_densities_too_dear_to_compute_are_told():
    """Last of all, with the dimension and the option; not in few dimensions, nor if asked for."""
    from untrained import CLUSTER, FLAT, untrained

    cluster = untrained("lj13", CLUSTER)
    dear = cluster.evaluate(100, repeats=1).verdict[-1]
    assert "36 dimensions" in dear and "--likelihood native" in dear
    asked = cluster.evaluate(100, repeats=1, likelihood="none").verdict
    cheap = untrained("gmm40", FLAT).evaluate(100, repeats=1, likelihood_n=100).verdict
    assert not any("own density" in said for said in [*asked, *cheap])
