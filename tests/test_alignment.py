"""Aligned distances between clusters: against a loop, brute force and POT."""

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.stats import ortho_group

from demx.evaluate import alignment, metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # announces missing backends
    import ot


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


@pytest.mark.parametrize("species", [None, np.array([0, 1, 0, 1, 1])])
def test_a_cluster_laid_onto_another_is_at_the_aligned_distance(rng, species):
    x, y = rng.normal(size=(2, 9, 5, 3))
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (x, y))
    found = ((x - alignment.laid_onto(x, y, species)) ** 2).sum(axis=(1, 2))
    costs = alignment.aligned_costs(x, y, species=species)
    np.testing.assert_allclose(found, np.diag(costs), atol=1e-11)


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
