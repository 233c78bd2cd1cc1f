"""Metrics, alignment and weights: against POT, ArviZ, brute force and closed forms."""

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.stats import ortho_group, special_ortho_group

from demx.evaluate import alignment, metrics, weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # both announce future changes and missing backends
    import arviz
    import ot


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


# --- distances between sets


def test_w2_agrees_with_pot(rng):
    x, y = rng.normal(size=(120, 5, 2)), 0.3 + 1.4 * rng.normal(size=(120, 5, 2))
    cost = ot.dist(x.reshape(120, -1), y.reshape(120, -1))
    assert metrics.w2(x, y) == pytest.approx(ot.emd2([], [], cost) ** 0.5, rel=1e-9)
    with pytest.raises(ValueError, match="expected sets of equal size"):
        metrics.exact_w2(cost[:50])


def test_energy_distances_agree_with_pot(rng):
    a, b = rng.normal(size=400), rng.gumbel(size=400)
    assert metrics.energy_w1(a, b) == pytest.approx(ot.wasserstein_1d(a, b, p=1), rel=1e-9)
    assert metrics.energy_w2(a, b) == pytest.approx(ot.emd2_1d(a, b) ** 0.5, rel=1e-9)


def test_distances_of_a_right_triangle():
    triangle = np.array([[[0, 0], [3, 0], [0, 4]]], dtype=np.float32)
    assert metrics.distances(triangle).tolist() == [[3, 4, 5]]
    assert metrics.distances(np.zeros((2, 55, 3))).shape == (2, 55 * 54 // 2)
    with pytest.raises(ValueError, match=r"2 or more particles, dim\), got \(7, 1, 3\)"):
        metrics.distances(np.zeros((7, 1, 3)))


def test_distance_w2_of_scaled_clusters(rng):
    """Scaling by s scales all distances: W2 = |s - 1| √(mean distance²)."""
    x = rng.normal(size=(50, 6, 3))
    size = np.sqrt((metrics.distances(x) ** 2).mean())
    assert metrics.distance_w2(x, 1.2 * x) == pytest.approx(0.2 * size)
    turned = x[:, rng.permutation(6)] @ ortho_group.rvs(3, random_state=rng) + 5
    assert metrics.distance_w2(x, turned) == pytest.approx(0, abs=1e-12)


def dimers(lengths):
    """Two particles each, `lengths` apart."""
    return np.stack([np.zeros(len(lengths)), lengths], axis=1)[:, :, None]


def test_distance_tv_by_hand():
    reference = dimers(np.linspace(1, 2, 201))
    assert metrics.distance_tv(reference, reference) == 0
    assert metrics.distance_tv(dimers(np.full(7, 9.0)), reference) == pytest.approx(1)
    half = dimers(np.array([0.5, 1.0025, 2.5, 1.9975]))  # two outside, two in bins of 1 and 2 / 201
    assert metrics.distance_tv(half, reference) == pytest.approx(1 - 3 / 201)
    bad = dimers(np.array([1.0025, np.nan]))
    assert metrics.distance_tv(bad, reference) == pytest.approx(1 - 1 / 201)
    with pytest.raises(ValueError, match="reference is not finite"):
        metrics.distance_tv(reference, bad)


def test_tv_by_hand():
    corners = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert metrics.tv(corners, corners) == 0
    assert metrics.tv(corners + 3, corners) == 1
    assert metrics.tv(np.array([[0.001, 0.999], [2.0, 0.5]]), corners) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="expected points in the plane"):
        metrics.tv(np.zeros((4, 3)), np.zeros((4, 3)))


def test_tv_of_two_uniforms(rng):
    """Uniform on [0, 1]² and on [0, ½] × [0, 1] differ by ½; few bins, so that noise is small.

    Noise of a histogram: E|h - p| ≤ √(p/n), so TV rises by at most ½ · 2 · cells · √(p/n).
    """
    x, y = rng.random((100_000, 2)), rng.random((100_000, 2))
    noise = (64 / 100_000) ** 0.5
    assert abs(metrics.tv(x * [0.5, 1], y, bins=8) - 0.5) < 2 * noise
    assert metrics.tv(x, y, bins=8) < 2 * noise


# --- alignment


def naive_cost(x, y):
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    _, match = linear_sum_assignment(x @ y.T, maximize=True)
    left, _, right = np.linalg.svd(y[match].T @ x)
    return ((x - y[match] @ left @ right) ** 2).sum()


@pytest.mark.parametrize(("particles", "dim"), [(4, 1), (4, 2), (2, 3), (13, 3), (5, 4)])
def test_aligned_costs_agree_with_a_loop(rng, particles, dim):
    x, y = rng.normal(size=(9, particles, dim)), rng.normal(size=(7, particles, dim))
    naive = [[naive_cost(a, b) for b in y] for a in x]
    np.testing.assert_allclose(alignment.aligned_costs(x, y), naive, atol=1e-11)


def test_w2_aligned_agrees_with_pot(rng):
    x, y = rng.normal(size=(2, 60, 5, 3))
    expected = ot.emd2([], [], np.array([[naive_cost(a, b) for b in y] for a in x])) ** 0.5
    assert alignment.w2_aligned(x, y) == pytest.approx(expected, rel=1e-9)


def test_a_moved_copy_is_at_no_distance(rng):
    """Relabelled, turned by less than neighbours are apart, reflected where that is small."""
    grid = np.array(list(itertools.product(range(3), range(3), [0.0, 1e-3])))[::2]
    x = grid + 0.05 * rng.normal(size=(20, *grid.shape))
    angle = 0.1
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0]])
    turn = np.vstack([turn, [[0, 0, -1]]])  # a reflection in the plane of the nearly flat grid
    y = np.stack([c[rng.permutation(len(grid))] @ turn.T + 7 for c in x])[rng.permutation(20)]
    assert alignment.w2_aligned(x, y) < 1e-6
    assert metrics.w2(x, y) > 5


def test_the_matching_by_brute_force(rng):
    """Best permutation of the coordinates by trying all 24, then the rotation by SVD."""
    x, y = rng.normal(size=(2, 8, 4, 3))
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (x, y))
    orders = [list(order) for order in itertools.permutations(range(4))]

    def cost(a, b):
        matched = min((b[order] for order in orders), key=lambda c: ((a - c) ** 2).sum())
        overlap = np.linalg.svd(a.T @ matched, compute_uv=False).sum()
        return (a**2).sum() + (b**2).sum() - 2 * overlap

    expected = [[cost(a, b) for b in y] for a in x]
    np.testing.assert_allclose(alignment.aligned_costs(x, y), expected, atol=1e-12)


def test_only_equal_species_are_exchanged(rng):
    x = rng.normal(size=(1, 4, 3))
    swapped = x[:, [1, 0, 2, 3]]
    same, different = np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2])
    assert alignment.w2_aligned(x, swapped, species=same) == pytest.approx(0, abs=1e-7)
    centred, moved = (v[0] - v[0].mean(axis=0) for v in (x, swapped))
    orders = ([0, 1, 2, 3], [0, 1, 3, 2])
    matched = min((moved[o] for o in orders), key=lambda c: ((centred - c) ** 2).sum())
    overlap = np.linalg.svd(centred.T @ matched, compute_uv=False).sum()
    expected = 2 * (centred**2).sum() - 2 * overlap
    found = alignment.aligned_costs(x, swapped, species=different)
    assert found[0, 0] == pytest.approx(expected) and expected > 0.01


@pytest.mark.parametrize(
    "sigma", [(1, 1, 1), (1, 1, 0), (1, 0.3, 0), (1, 0, 0), (1, 1e-3, 1e-3), (1e8, 1, 0), (0, 0, 0)]
)
def test_singular_value_sums(rng, sigma):
    """Also where eigenvalues of MᵀM would lose half of their digits: flat and linear clusters.

    The promise: a relative error of ε σ1/(σ2 + σ3), at most √ε; here with a factor of 30.
    """
    left, right = (ortho_group.rvs(3, size=200, random_state=rng) for _ in range(2))
    found = alignment.singular_value_sum(left * np.array(sigma) @ right)
    eps = np.finfo(float).eps
    ratio = sigma[0] / (sigma[1] + sigma[2]) if sigma[1] else 1
    np.testing.assert_allclose(found, sum(sigma), rtol=min(30 * eps * ratio, eps**0.5), atol=1e-150)


def test_singular_value_sums_of_random_matrices(rng):
    for dim in (2, 3, 4):
        m = rng.normal(size=(2000, dim, dim))
        expected = np.linalg.svd(m, compute_uv=False).sum(axis=1)
        np.testing.assert_allclose(alignment.singular_value_sum(m), expected, rtol=1e-13)


def test_blocks_and_processes_change_nothing(rng, monkeypatch):
    x, y = rng.normal(size=(5, 6, 3)), rng.normal(size=(11, 6, 3))
    species = np.array([0, 0, 0, 1, 1, 1])
    whole = alignment.aligned_costs(x, y, species=species)
    np.testing.assert_array_equal(alignment.aligned_costs(x, y, 2, species=species), whole)
    monkeypatch.setattr(alignment, "_BLOCK", 4 * 36)
    np.testing.assert_allclose(alignment.aligned_costs(x, y, species=species), whole, rtol=1e-12)


def test_an_unguarded_script_can_use_processes(tmp_path):
    """Workers neither run the caller's script again nor import JAX."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\n"
        "import sys, numpy as np\n"
        "from demx.evaluate.alignment import w2_aligned\n"
        "x = np.random.default_rng(0).normal(size=(4, 3, 2))\n"
        "assert w2_aligned(x, x[::-1], 2) < 1e-7\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once"] and not done.stderr


def test_what_cannot_be_aligned_is_refused():
    x = np.zeros((3, 4, 2))
    with pytest.raises(ValueError, match=r"got \(3, 4, 2\) and \(3, 5, 2\)"):
        alignment.aligned_costs(x, np.zeros((3, 5, 2)))
    with pytest.raises(ValueError, match="a species for each of 4 particles"):
        alignment.aligned_costs(x, x, species=np.zeros(3, int))
    with pytest.raises(ValueError, match="leave bad samples out"):
        alignment.aligned_costs(x, x + np.nan)


# --- importance weights


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
