"""W2 between sets of clusters, up to relabelling, rotation and reflection.

NumPy and SciPy only: the workers import this module, and should not wait for JAX.
"""

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.optimize import linear_sum_assignment

from demx.evaluate.metrics import exact_w2

# entries of the (pairs, particles, particles) block in work: it stays within a core's cache
_BLOCK = 2**17


def w2_aligned(
    x: np.ndarray, y: np.ndarray, workers: int = 1, *, species: np.ndarray | None = None
) -> float:
    """√(min over pairings of mean d²(x_i, y_π(i))), d² = `aligned_costs`: root taken.

    x, y: (n, particles, dim) of equal n; species: (particles,).
    """
    return exact_w2(aligned_costs(x, y, workers, species=species))


def aligned_costs(
    x: np.ndarray, y: np.ndarray, workers: int = 1, *, species: np.ndarray | None = None
) -> np.ndarray:
    """d²(x_i, y_j) = min over orthogonal R of |x_i - P y_j R|², P = argmin over P of |x_i - P y_j|.

    First the particles are matched as they lie, then the matched clusters are turned: the
    joint minimum over P and R may be lower, but has no algorithm that is fast and exact.
    x: (n, particles, dim), y: (m, particles, dim), centred here -> (n, m). species: (particles,)
    integers, P only exchanges equal ones. workers: processes that share the rows; each takes
    about a second to start, so that they help from some 10⁶ pairs on.
    """
    if x.ndim != 3 or y.ndim != 3 or x.shape[1:] != y.shape[1:]:
        raise ValueError(
            "aligned_costs: expected (n, particles, dim) and (m, particles, dim), "
            f"got {x.shape} and {y.shape}"
        )
    if species is not None and species.shape != x.shape[1:2]:
        raise ValueError(
            f"aligned_costs: expected a species for each of {x.shape[1]} particles, "
            f"got shape {species.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("aligned_costs: coordinates are not finite; leave bad samples out first")
    x, y = (v - v.mean(axis=1, keepdims=True) for v in (x.astype(float), y.astype(float)))
    # an interpreter takes half a second to start: not for little work
    if workers <= 1 or len(x) * len(y) * x.shape[1] ** 2 < 10**8:
        return _costs(x, y, species)
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda rows: _in_process(rows, y, species), np.array_split(x, workers))
        return np.concatenate(list(parts))


def _costs(x: np.ndarray, y: np.ndarray, species: np.ndarray | None) -> np.ndarray:
    """All pairs of centred clusters, in blocks of bounded memory."""
    particles = x.shape[1]
    square_x, square_y = ((v**2).sum(axis=(1, 2)) for v in (x, y))
    forbidden = None if species is None else species[:, None] != species
    size = max(1, _BLOCK // particles**2)
    # one buffer for all blocks: fresh ones are given back to the system and cleared every time
    buffer = np.empty((size, particles, particles))
    costs = np.empty((len(x), len(y)))
    for start in range(0, len(y), size):
        part = slice(start, start + size)
        others = y[part]
        for i, one in enumerate(x):
            matched = one[_matching(one, others, forbidden, buffer[: len(others)])]
            overlap = singular_value_sum(np.swapaxes(others, 1, 2) @ matched)
            costs[i, part] = square_x[i] + square_y[part] - 2 * overlap
    return np.maximum(costs, 0)  # rounding makes identical clusters slightly negative


def _matching(
    one: np.ndarray, others: np.ndarray, forbidden: np.ndarray | None, cost: np.ndarray
) -> np.ndarray:
    """For each particle of the m others its partner in `one`: (m, particles).

    cost: (m, particles, particles), overwritten by |other_k - one_l|² up to a constant for each l.
    The constants change no optimum; squared distances whose columns start at zero put the
    search near its solution, 3 times faster than -<other_k, one_l> for 55 particles.
    """
    np.matmul(others, -2 * one.T, out=cost)
    cost += (others**2).sum(axis=2, keepdims=True)
    if forbidden is not None:
        cost[:, forbidden] = np.inf
    cost -= cost.min(axis=1, keepdims=True)
    return np.array([linear_sum_assignment(c)[1] for c in cost])


def laid_onto(x: np.ndarray, y: np.ndarray, species: np.ndarray | None = None) -> np.ndarray:
    """P_i y_i R_i for every i: renumbered and turned to lie on x_i, as `aligned_costs` does it.

    x, y: (n, particles, dim), centred -> (n, particles, dim).
    """
    cost = np.swapaxes(-2 * y @ np.swapaxes(x, 1, 2), 1, 2)  # |x_k - y_l|², what P can change
    cost = cost + (y**2).sum(axis=2)[:, None]
    if species is not None:
        cost[:, species[:, None] != species] = np.inf
    order = np.array([linear_sum_assignment(c)[1] for c in cost])
    matched = np.take_along_axis(y, order[..., None], axis=1)
    left, _, right = np.linalg.svd(np.swapaxes(matched, 1, 2) @ x)
    return matched @ (left @ right)


def singular_value_sum(matrix: np.ndarray) -> np.ndarray:
    """Σ σ_i of matrices (…, dim, dim) -> (…), in closed form for dim 2 and 3.

    dim 2: (σ1 + σ2)² = |M|² + 2 |det M|.
    dim 3: λ = σ1² is the largest root of λ³ - aλ² + bλ - c² with a = |M|², b = |cof M|²,
    c = |det M|, and (σ2 + σ3)² = (b - c²/λ)/λ + 2c/σ1. No digits are lost for flat clusters, as
    by the smaller eigenvalues of MᵀM: the relative error is ε σ1/(σ2 + σ3), and never above √ε.
    Where λ is ill-conditioned (σ1 = σ2) the sum is stationary in it.
    """
    dim = matrix.shape[-1]
    if dim == 2:
        (p, q), (r, s) = np.moveaxis(matrix, (-2, -1), (0, 1))
        return np.sqrt(p**2 + q**2 + r**2 + s**2 + 2 * np.abs(p * s - q * r))
    if dim != 3:
        return np.linalg.svd(matrix, compute_uv=False).sum(axis=-1)
    u, v, w = np.moveaxis(matrix, (-2, -1), (0, 1))
    minors = (_cross(v, w), _cross(w, u), _cross(u, v))
    a = sum((row**2).sum(axis=0) for row in (u, v, w))
    b = sum((row**2).sum(axis=0) for row in minors)
    c = np.abs((u * minors[0]).sum(axis=0))
    tiny = np.finfo(float).tiny
    spread = np.sqrt(np.maximum(a**2 - 3 * b, 0))
    cosine = (a**3 - 4.5 * a * b + 13.5 * c**2) / np.maximum(spread**3, tiny)
    top = (a + 2 * spread * np.cos(np.arccos(np.clip(cosine, -1, 1)) / 3)) / 3
    root = np.sqrt(np.maximum(top, tiny))
    c = np.minimum(c, b / (2 * root))  # as σ2 σ3 ≤ (σ2² + σ3²)/2: what rounding breaks on a line
    return root + np.sqrt(np.maximum(b - (c / root) ** 2 + 2 * c * root, 0)) / root


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """u × v along the first axis: np.cross spends more time on its axes than on the product."""
    return np.stack(
        (u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0])
    )


def _in_process(x: np.ndarray, y: np.ndarray, species: np.ndarray | None) -> np.ndarray:
    """`_costs` in a fresh interpreter.

    Threads would share one lock, handed over at every assignment of a few µs; a fork is unsafe
    beside JAX's threads; multiprocessing's spawn would run the caller's script a second time.
    """
    path, given = os.pathsep.join(sys.path), io.BytesIO()
    np.savez(given, x=x, y=y, **({} if species is None else {"species": species}))
    done = subprocess.run(
        [sys.executable, "-c", "from demx.evaluate import alignment; alignment._worker()"],
        input=given.getvalue(),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return np.frombuffer(done.stdout).reshape(len(x), len(y))


def _worker() -> None:
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as given:
        sys.stdout.buffer.write(_costs(given["x"], given["y"], given.get("species")).tobytes())
