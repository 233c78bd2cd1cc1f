"""How good are samples? Every metric with its standard error and its floor.

The floor of a metric is its value between two independent reference sets of the same size:
what perfect samples would get. Samples come in `repeats` blocks of n; a metric is
the mean over the blocks, its standard error their spread over √repeats, and floors are made
in the same way from reference blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from demx import energy
from demx.evaluate import metrics
from demx.types import Target


class Metric(NamedTuple):
    """A value, its standard error, and the same for perfect samples (None: no reference)."""

    value: float
    standard_error: float
    floor: float | None = None
    floor_standard_error: float | None = None
    n: int = 0

    two_sided: bool = False  # a mean, which can be too low as well as too high

    @property
    def at_floor(self) -> bool | None:
        """Within two joint standard errors of the floor, or (unless two-sided) better."""
        if self.floor is None:
            return None
        joint = float(np.hypot(self.standard_error, self.floor_standard_error or 0.0))
        gap = self.value - self.floor
        return bool((abs(gap) if self.two_sided else gap) <= 2 * joint)


class Evaluation(NamedTuple):
    metrics: dict[str, Metric]
    n: int
    repeats: int
    bad: int  # samples whose energy is not finite: left out of energy statistics, and shown
    energy_calls: int


def _mean(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)


def batched_energies(target: Target, x: np.ndarray, size: int = 4096) -> np.ndarray:
    """E(x_i) in blocks of bounded memory."""
    function = jax.jit(lambda xs: energy.energies(target, xs))
    parts = [np.asarray(function(x[i : i + size])) for i in range(0, len(x), size)]
    return np.concatenate(parts)


def reference_samples(target: Target, key: PRNGKeyArray, n: int) -> np.ndarray | None:
    """n independent reference samples, if the target can draw them exactly."""
    sample = getattr(target, "sample", None)
    return None if sample is None else np.asarray(sample(key, n))


def finite_rows(x: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Which samples have finite coordinates and a finite energy."""
    return np.isfinite(energies) & np.isfinite(x.reshape(len(x), -1)).all(axis=1)


def evaluate(target: Target, x: np.ndarray, key: PRNGKeyArray, *, repeats: int = 10) -> Evaluation:
    """All metrics of len(x) samples, in `repeats` blocks; energy calls: one a sample.

    Bad samples are counted and left out; without good ones in every block there are no metrics.
    """
    n = len(x) // repeats if repeats else 0
    if n < 2 or repeats < 2:
        raise ValueError(
            f"expected at least 2 repeats of at least 2 samples, got {len(x)} samples and "
            f"{repeats} repeats"
        )
    x = x[: n * repeats]
    energies = batched_energies(target, x)
    good = finite_rows(x, energies)
    calls, bad = len(x), int((~good).sum())
    blocks = [b[g] for b, g in zip(np.split(x, repeats), np.split(good, repeats), strict=True)]
    if min(len(block) for block in blocks) < 2:
        return Evaluation({}, n, repeats, bad, calls)
    x, energies = x[good], energies[good]
    found = {"energy_mean": _spread(energies), "energy_median": _median(energies)}
    key_a, key_b, key_modes = jax.random.split(key, 3)
    reference = reference_samples(target, key_a, n * repeats)
    other = reference_samples(target, key_b, n * repeats)
    if reference is not None and other is not None:
        a, b = np.split(reference, repeats), np.split(other, repeats)
        e_a, e_b = batched_energies(target, reference), batched_energies(target, other)
        calls += 2 * n * repeats
        for name, statistic in (("energy_mean", _spread), ("energy_median", _median)):
            true = statistic(e_a)
            found[name] = found[name]._replace(
                floor=true.value, floor_standard_error=true.standard_error, two_sided=True
            )
        found["w2"] = _compare(lambda s, r: metrics.w2(s, r[: len(s)]), blocks, a, b)
        split = np.split(energies, np.cumsum([len(block) for block in blocks])[:-1])
        of_reference = (np.split(e_a, repeats), np.split(e_b, repeats))
        found["energy_w2"] = _compare(metrics.energy_w2, split, *of_reference)
        found["energy_w1"] = _compare(metrics.energy_w1, split, *of_reference)
    if reference is not None and hasattr(target, "modes"):
        found |= _mode_metrics(target, blocks, x, key_modes, repeats)
    return Evaluation(found, n, repeats, bad, calls)


def _spread(values: np.ndarray) -> Metric:
    count = max(len(values), 1)
    return Metric(float(np.mean(values)), float(np.std(values) / count**0.5), n=len(values))


def _median(values: np.ndarray) -> Metric:
    """The median; its standard error from the order statistics half a √n away."""
    ordered, n = np.sort(values), len(values)
    step = max(1, round(0.5 * n**0.5))
    low, high = ordered[max(0, n // 2 - step)], ordered[min(n - 1, n // 2 + step)]
    return Metric(float(np.median(values)), float(0.5 * (high - low)), n=n)


def _compare(
    metric: Callable[[np.ndarray, np.ndarray], float],
    samples: list[np.ndarray],
    reference: list[np.ndarray],
    other: list[np.ndarray],
) -> Metric:
    value = _mean([metric(s, r) for s, r in zip(samples, reference, strict=True)])
    floor = _mean([metric(o, r) for o, r in zip(other, reference, strict=True)])
    return Metric(*value, *floor, n=len(reference[0]))


def _mode_metrics(target, blocks, x, key, repeats) -> dict[str, Metric]:
    """Modes found, weights and outliers; floors by exact sets of all of x's size."""
    modes, scale = np.asarray(target.modes), np.asarray(target.mode_scale)
    weights = np.exp(np.asarray(target.log_weights))
    exact = [np.asarray(target.sample(k, len(x))) for k in jax.random.split(key, repeats)]
    # the error of the whole set's value: blocks are smaller, so theirs is scaled by √repeats
    tv_blocks = [metrics.mode_tv(b, modes, weights) for b in blocks]
    outside = [metrics.outside_share(b, modes, scale) for b in blocks]
    hit = metrics.modes_hit(x, modes, scale)
    return {
        "modes_hit": Metric(hit, 0.0, float(len(modes)), 0.0, len(x)),
        "mode_tv": Metric(
            metrics.mode_tv(x, modes, weights),
            float(np.std(tv_blocks, ddof=1) / repeats**0.5),
            *_mean([metrics.mode_tv(e, modes, weights) for e in exact]),
            len(x),
        ),
        "outside_share": Metric(
            *_mean(outside),
            *_mean([metrics.outside_share(e, modes, scale) for e in exact]),
            len(x),
        ),
    }
