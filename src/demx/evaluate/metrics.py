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
    return exact_w2(cost)


def exact_w2(cost: np.ndarray) -> float:
    """√(min over pairings of mean cost_iπ(i)): cost: (n, n) of squared distances."""
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"exact_w2: expected sets of equal size, got costs {cost.shape}")
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


def distances(x: np.ndarray) -> np.ndarray:
    """|x_k - x_l| for all k < l: (n, particles, dim) -> (n, pairs), in float64.

    One particle after the other, so that no array is larger than the answer.
    """
    if x.ndim != 3 or x.shape[1] < 2:
        raise ValueError(f"distances: expected (n, 2 or more particles, dim), got {x.shape}")
    x = x.astype(float)
    apart = (np.linalg.norm(x[:, k + 1 :] - x[:, k, None], axis=2) for k in range(x.shape[1] - 1))
    return np.concatenate(list(apart), axis=1)


def distance_w2(x: np.ndarray, y: np.ndarray) -> float:
    """√∫(F_x⁻¹ - F_y⁻¹)²: Wasserstein-2 between pooled interparticle distances, root taken.

    x: (n, particles, dim), y: (m, particles, dim).
    """
    return energy_w2(distances(x).ravel(), distances(y).ravel())


def distance_tv(x: np.ndarray, y: np.ndarray, bins: int = 200) -> float:
    """½ Σ |h_x - h_y|, h = histograms of the pooled interparticle distances over y's range.

    x: (n, particles, dim), y: (m, particles, dim), the reference. Counts fully outside its range.
    """
    return _histogram_tv(distances(x).reshape(-1, 1), distances(y).reshape(-1, 1), bins)


def tv(x: np.ndarray, y: np.ndarray, bins: int = 200) -> float:
    """½ Σ |h_x - h_y|, h = histograms of bins × bins cells over the bounding box of y.

    x: (n, 2), y: (m, 2), the reference. Samples outside its box count fully.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != 2 or y.shape[1] != 2:
        raise ValueError(f"tv: expected points in the plane, got {x.shape} and {y.shape}")
    return _histogram_tv(x.astype(float), y.astype(float), bins)


def _histogram_tv(x: np.ndarray, y: np.ndarray, bins: int) -> float:
    """Total variation between histograms of points (n, d), (m, d) in the box of y.

    What is not in the box, NaN included, is one more cell, which is empty for y.
    """
    if not np.isfinite(y).all():
        raise ValueError("tv: the reference is not finite; leave its bad samples out first")
    box = [(column.min(), column.max()) for column in y.T]
    count_x, count_y = (np.histogramdd(v, bins, box)[0] for v in (x, y))
    outside = (len(x) - count_x.sum()) / len(x)
    return float(0.5 * (np.abs(count_x / len(x) - count_y / len(y)).sum() + outside))


def nearest_mode(x: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """Which of the modes (M, dim) each sample is nearest to: (n,)."""
    return cdist(x, modes).argmin(axis=1)


def mode_histogram(x: np.ndarray, modes: np.ndarray) -> np.ndarray:
    """Share of the samples nearest to each mode: (M,), sums to 1."""
    return np.bincount(nearest_mode(x, modes), minlength=len(modes)) / len(x)


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
