"""Distances between sample sets: pure functions of arrays, whose names are definitions."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist


def w2(x: np.ndarray, y: np.ndarray) -> float:
    """W2 = √(min over pairings of mean |x_i - y_π(i)|²): exact, root taken, nothing aligned.

    x, y: (n, …) of equal n. In many dimensions it is dominated by n: look at the floor.
    """
    if len(x) != len(y):
        raise ValueError(f"w2: expected sets of equal size, got {len(x)} and {len(y)}")
    cost = cdist(x.reshape(len(x), -1), y.reshape(len(y), -1), "sqeuclidean")
    return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))


def _quantiles(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two sorted samples of the same length; the longer one is read at the other's quantiles."""
    n = min(len(a), len(b))
    at = (np.arange(n) + 0.5) / n
    return tuple(np.sort(v) if len(v) == n else np.quantile(v, at, method="hazen") for v in (a, b))


def energy_w2(a: np.ndarray, b: np.ndarray) -> float:
    """√∫(F_a⁻¹ - F_b⁻¹)²: Wasserstein-2 between two sets of energies, root taken."""
    a, b = _quantiles(a, b)
    return float(np.sqrt(np.mean((a - b) ** 2)))


def energy_w1(a: np.ndarray, b: np.ndarray) -> float:
    """∫|F_a⁻¹ - F_b⁻¹|: Wasserstein-1 between two sets of energies."""
    a, b = _quantiles(a, b)
    return float(np.mean(np.abs(a - b)))


def mode_histogram(x: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """Share of the samples nearest to each mode: (M,), sums to 1."""
    return np.bincount(cdist(x, modes).argmin(axis=1), minlength=len(modes)) / len(x)


def modes_hit(x: np.ndarray, modes: np.ndarray, scale: np.ndarray, within: float = 3.0) -> int:
    """How many modes have at least one sample within `within` standard deviations."""
    return int((cdist(x, modes) <= within * scale[None]).any(axis=0).sum())


def mode_tv(x: np.ndarray, modes: np.ndarray, weights: np.ndarray) -> float:
    """½ Σ_m |h_m - w_m|: total variation between the mode histogram and the true weights."""
    return float(0.5 * np.abs(mode_histogram(x, modes) - weights).sum())


def outside_share(
    x: np.ndarray, modes: np.ndarray, scale: np.ndarray, within: float = 3.0
) -> float:
    """Share of the samples farther than `within` standard deviations from every mode."""
    return float((cdist(x, modes) > within * scale[None]).all(axis=1).mean())
