"""Importance weights: against ArviZ and closed forms; their errors against the spread."""

import warnings

import numpy as np
import pytest
from scipy.stats import special_ortho_group

from demx.evaluate import weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # announces future changes
    import arviz


@pytest.mark.parametrize("inverse_k", [0.8, 1.2, 2.0, 5.0, 50.0])
def test_psis_k_agrees_with_arviz(rng, inverse_k):
    for n in (30, 400, 4000):
        log_weight = rng.exponential(1 / inverse_k, size=n)  # w is Pareto: k = 1/inverse_k
        found = weights.psis_k(log_weight - 1234.5)
        assert found.value == pytest.approx(float(arviz.psislw(log_weight)[1]), abs=1e-9)
    assert abs(found.value - 1 / inverse_k) < 4 * found.standard_error + 10 / 190


@pytest.mark.parametrize("scale", [1e-9, 1.0, 30.0, 2000.0])
def test_psis_k_of_normal_log_weights(rng, scale):
    """From weights that differ in the last digits to those beyond the range of floats."""
    log_weight = scale * rng.normal(size=2000)
    expected = float(arviz.psislw(log_weight)[1])
    assert weights.psis_k(log_weight).value == pytest.approx(expected, abs=1e-5)


def test_psis_k_without_a_tail():
    assert weights.psis_k(np.full(100, 3.0)).value == -np.inf
    few = np.full(100, -np.inf)
    few[:4] = 0.0, 1.0, 2.0, 3.0
    assert weights.psis_k(few).value == np.inf
    few[4:9] = np.arange(5) / 7
    assert np.isfinite(weights.psis_k(few).value)
    with pytest.raises(ValueError, match="at least 21 samples"):
        weights.psis_k(np.zeros(20))


def test_weighted_mean_is_that_of_the_target(rng):
    """q = N(0, 1), w = e^x: p = N(1, 1). Its error is that of the spread; zeros have no part."""
    draws = rng.normal(size=(400, 500))
    found = np.array([weights.weighted_mean(x, x) for x in draws])
    print(found.mean(axis=0))
    spread = found[:, 0].std(ddof=1)
    # a ratio is biased by O(1/n): E w²(v - 1)/n = e·1/n here
    assert abs(found[:, 0].mean() - 1) < 4 * spread / 400**0.5 + 2 * np.e / 500
    # the errors are those of the spread, to what 400 sets know of both
    ratio = lambda sets: np.log((sets[:, 1] ** 2).mean() / sets[:, 0].var(ddof=1)) / 2  # noqa: E731
    again = [ratio(found[rng.integers(400, size=400)]) for _ in range(400)]
    print(ratio(found), np.std(again))
    assert abs(ratio(found)) < 4 * np.std(again)
    x = draws[0]
    more = weights.weighted_mean(np.append(x, -np.inf), np.append(x, np.inf))
    assert more.value == pytest.approx(weights.weighted_mean(x, x).value)


def test_ess_at_its_ends():
    assert weights.ess(np.full(50, -1000.0)) == (pytest.approx(1), 0)
    one = np.full(50, -np.inf)
    one[7] = 800.0
    assert weights.ess(one).value == pytest.approx(1 / 50)
    one[8:20] = 800.0
    assert weights.ess(one).value == pytest.approx(13 / 50)


def test_ess_of_a_wider_normal(rng):
    """p = N(0, 1), q = N(0, s²) in d dimensions: ess = (√(2s² - 1)/s²)^d."""
    s, d = 1.3, 3
    x = s * rng.normal(size=(20_000, d))
    log_weight = 0.5 * (x**2).sum(axis=1) * (1 / s**2 - 1)
    found = weights.ess(log_weight)
    assert abs(found.value - ((2 * s**2 - 1) ** 0.5 / s**2) ** d) < 4 * found.standard_error


class Pair:
    """p̃ = exp(-½ xᵀAx), a correlated normal with known Z, and q = N(m, s²I) in dim 3."""

    mean, scale = np.array([0.1, 0.0, -0.1]), 1.15

    def __init__(self, rng):
        turn = special_ortho_group.rvs(3, random_state=rng)
        self.precision = turn * np.array([0.9, 1.1, 1.4]) @ turn.T
        self.covariance = np.linalg.inv(self.precision)
        self.log_z = 1.5 * np.log(2 * np.pi) - 0.5 * np.log(np.linalg.det(self.precision))

    def log_q(self, x):
        square = ((x - self.mean) ** 2).sum(axis=-1) / self.scale**2
        return -0.5 * square - 1.5 * np.log(2 * np.pi * self.scale**2)

    def log_weight(self, x):
        return -0.5 * np.einsum("...i,ij,...j", x, self.precision, x) - self.log_q(x)

    def sample_q(self, rng, *shape):
        return self.mean + self.scale * rng.normal(size=(*shape, 3))

    def sample_p(self, rng, *shape):
        return rng.normal(size=(*shape, 3)) @ np.linalg.cholesky(self.covariance).T

    def exact(self):
        """E_q[log w], log Z, E_p[log w], -E_p[log q] in closed form."""
        a, s, m = self.precision, self.scale, self.mean
        log_q_at_mean = -1.5 * np.log(2 * np.pi * s**2)
        lower = -0.5 * (s**2 * np.trace(a) + m @ a @ m) - log_q_at_mean + 1.5
        cross = 0.5 * (np.trace(self.covariance) + m @ m) / s**2 - log_q_at_mean
        return lower, self.log_z, cross - 1.5, cross


def test_log_z_of_a_correlated_normal(rng):
    pair = Pair(rng)
    of_q = pair.log_weight(pair.sample_q(rng, 40_000))
    reference = pair.sample_p(rng, 40_000)
    found = (
        weights.log_z_lower(of_q),
        weights.log_z_is(of_q),
        weights.log_z_upper(pair.log_weight(reference)),
        weights.nll(pair.log_q(reference)),
    )
    for estimate, exact in zip(found, pair.exact(), strict=True):
        assert abs(estimate.value - exact) < 4 * estimate.standard_error
        assert estimate.standard_error < 0.02
    lower, _, upper, _ = found
    assert lower.value < pair.log_z < upper.value


def test_standard_errors_are_the_spread(rng):
    """Over repetitions: the spread of the values is the reported error, within the error of a
    sample variance, var · √((kurtosis - 1)/repetitions), 4 times, and the O(1/n) of both."""
    pair, repetitions, n = Pair(rng), 400, 500
    of_q = pair.log_weight(pair.sample_q(rng, repetitions, n))
    reference = pair.sample_p(rng, repetitions, n)
    rows = {
        weights.ess: of_q,
        weights.log_z_is: of_q,
        weights.log_z_lower: of_q,
        weights.log_z_upper: pair.log_weight(reference),
        weights.nll: pair.log_q(reference),
    }
    for function, arguments in rows.items():
        values, errors = np.array([function(row) for row in arguments]).T
        standard = (values - values.mean()) / values.std()
        tolerance = 4 * 0.5 * (((standard**4).mean() - 1) / repetitions) ** 0.5 + 10 / n
        assert errors.mean() == pytest.approx(values.std(ddof=1), rel=tolerance), function


def test_the_pareto_error_is_the_spread(rng):
    """The prior's 10 samples shrink the spread by M/(M + 10), M = ⌈3√2000⌉ = 135."""
    values, errors = np.array(
        [weights.psis_k(row) for row in rng.exponential(0.5, size=(400, 2000))]
    ).T
    assert values.std() * 145 / 135 == pytest.approx(errors.mean(), rel=4 * 0.5 * (2 / 400) ** 0.5)


def test_zero_weights_are_legal(rng):
    log_weight = rng.normal(size=1000)
    half = np.where(np.arange(1000) < 500, log_weight, -np.inf)
    assert weights.log_z_is(half).value == pytest.approx(
        weights.log_z_is(log_weight[:500]).value - np.log(2)
    )
    assert weights.ess(half).value == pytest.approx(weights.ess(log_weight[:500]).value / 2)
    assert np.isfinite(weights.psis_k(half)).all()
    assert weights.log_z_lower(half).value == -np.inf
    assert weights.nll(half).value == np.inf
    with pytest.raises(ValueError, match="reference samples have p > 0"):
        weights.log_z_upper(half)


@pytest.mark.parametrize("function", [weights.ess, weights.log_z_is, weights.psis_k])
def test_only_zero_weights_are_refused(function):
    with pytest.raises(ValueError, match="all weights are zero"):
        function(np.full(100, -np.inf))


@pytest.mark.parametrize("name", ["ess", "log_z_is", "log_z_lower", "log_z_upper", "nll", "psis_k"])
def test_bad_weights_are_refused(name):
    function = getattr(weights, name)
    with pytest.raises(ValueError, match=f"{name}: 2 of 100 values are NaN or"):
        function(np.array([np.nan, np.inf] + [0.0] * 98))
    with pytest.raises(ValueError, match=r"at least \d+ samples, got shape \(4,\)"):
        function(np.zeros(4))
    with pytest.raises(ValueError, match="one value a sample"):
        function(np.zeros((50, 2)))
