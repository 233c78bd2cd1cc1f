"""Mean, standard deviation and quantiles of a number, of weighted samples too, with errors.

With shares w̄_i = w_i/Σw a mean is Σ w̄_i f_i, and its standard error by the delta method
√Σ (w̄_i (f_i - mean))². Samples of one island depend on each other: their terms are added before
they are squared.
"""

from typing import NamedTuple

import numpy as np

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Value(NamedTuple):
    """A value and its standard error (nan where one sample or island cannot give it)."""

    value: float
    standard_error: float


class Summary(NamedTuple):
    """Of n values; bad: others that were not finite. quantiles: by probability."""

    n: int
    bad: int
    mean: Value
    sd: Value
    quantiles: dict[float, Value]


def shares(log_weight: np.ndarray | None, n: int) -> np.ndarray:
    """w̄ = w/Σw, (n,); equal ones without weights."""
    if log_weight is None:
        return np.full(n, 1 / max(n, 1))
    log_weight = np.asarray(log_weight, float)
    if not np.isfinite(log_weight.max(initial=-np.inf)):
        raise ValueError("all weights are zero")
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def _error(terms: np.ndarray, island: np.ndarray | None) -> float:
    """√(Σ_g (Σ_{i in g} terms_i)² · G/(G - 1)) over G islands, or over samples."""
    if island is not None:
        _, number = np.unique(island, return_inverse=True)
        terms = np.bincount(number, terms)
    count = len(terms)
    return float(np.sqrt((terms**2).sum() * count / (count - 1))) if count > 1 else float("nan")


def summarise(
    values: np.ndarray,
    log_weight: np.ndarray | None = None,
    island: np.ndarray | None = None,
    probabilities: tuple[float, ...] = PROBABILITIES,
) -> Summary:
    """values, log_weight, island: (n,)."""
    good = np.isfinite(values)
    bad = int((~good).sum())
    if not good.any():
        raise ValueError("no value is finite")
    f = np.asarray(values, float)[good]
    w = shares(None if log_weight is None else np.asarray(log_weight)[good], len(f))
    island = None if island is None else np.asarray(island)[good]
    mean = float((w * f).sum())
    centred = f - mean
    sd = float(np.sqrt((w * centred**2).sum()))
    # d sd = d variance / 2 sd
    of_sd = w * (centred**2 - sd**2) / (2 * sd) if sd > 0 else np.zeros(len(f))
    quantile = _Quantile(f, w)
    found = {}
    for p in probabilities:
        at = quantile(p)
        # the error of the share below, carried through the quantile function
        step = _error(w * ((f <= at) - p), island)
        if np.isnan(step):
            found[p] = Value(at, step)
            continue
        low, high = quantile(max(0.0, p - step)), quantile(min(1.0, p + step))
        found[p] = Value(at, 0.5 * (high - low))
    mean_, sd_ = Value(mean, _error(w * centred, island)), Value(sd, _error(of_sd, island))
    return Summary(len(f), bad, mean_, sd_, found)


class _Quantile:
    """The quantile function of weighted values: linear between the middles of their shares."""

    def __init__(self, values: np.ndarray, share: np.ndarray):
        order = np.argsort(values)
        order = order[share[order] > 0]
        self.values = values[order]
        self.middle = np.cumsum(share[order]) - 0.5 * share[order]

    def __call__(self, p: float) -> float:
        return float(np.interp(p, self.middle, self.values))
