"""Mean, standard deviation and quantiles of a number, of weighted samples too, with errors.

With shares w̄_i = w_i/Σw a mean is Σ w̄_i f_i, and its standard error by the delta method
√Σ (w̄_i (f_i - mean))². Samples of one island depend on each other: their terms are added before
they are squared. The share of a cell, such as a bin, is the mean of 1 within and 0 outside.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

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


def student(freedom: float) -> float:
    """By which two standard errors of few degrees of freedom cover what two cover of a normal."""
    return float(stdtrit(freedom, ndtr(2.0)) / 2)


def _numbered(island: np.ndarray | None, n: int) -> np.ndarray:
    """Groups of samples, by number from 0 on; every sample is one of its own without islands."""
    return np.arange(n) if island is None else np.unique(island, return_inverse=True)[1]


def _error(terms: np.ndarray, group: np.ndarray) -> float:
    """√(Σ_g (Σ_{i in g} terms_i)² · G/(G - 1)) over G groups."""
    terms = np.bincount(group, terms)
    count = len(terms)
    return float(np.sqrt((terms**2).sum() * count / (count - 1))) if count > 1 else float("nan")


class Cells(NamedTuple):
    """share, standard_error: (M,). reached: (M,) of the `groups`, islands or samples, those that a
    cell has some of. squares: Σ w̄²."""

    share: np.ndarray
    standard_error: np.ndarray
    reached: np.ndarray
    groups: int
    squares: float

    def errors_of(self, p: np.ndarray) -> np.ndarray:
        """√(p (1 - p)/worth), (M,): the errors of samples that depend on each other as these do,
        were their shares p. nan of one island.

        1/worth = Σ error²/Σ share (1 - share) over all cells, but Σ w̄² at least: of a cell with
        few samples, or none, its own error tells little. It has G - 1 degrees of freedom for each
        of the directions that the shares can vary in, (tr C)²/tr C² by their covariance C.
        """
        if self.groups == 1:
            return np.full(len(p), np.nan)
        if (self.reached > 0).sum() == 1:  # all samples agree: how they depend does not show
            return np.sqrt(p * (1 - p) * self.squares)
        s = self.share
        trace = float((s * (1 - s)).sum())
        directions = trace**2 / float((s**2 - 2 * s**3).sum() + (s**2).sum() ** 2)
        measured = float((self.standard_error**2).sum()) / trace
        enlarged = measured * student((self.groups - 1) * directions) ** 2
        return np.sqrt(p * (1 - p) * max(enlarged, self.squares))


def cells(
    place: np.ndarray,
    count: int,
    log_weight: np.ndarray | None = None,
    island: np.ndarray | None = None,
) -> Cells:
    """Shares of cells that samples are in, from 0 to count - 1: place, log_weight, island: (n,)."""
    w, group = shares(log_weight, len(place)), _numbered(island, len(place))
    share = np.bincount(place, w, count)
    error = [_error(w * ((place == cell) - share[cell]), group) for cell in range(count)]
    some = np.unique(np.stack([group, place])[:, w > 0], axis=1)
    reached = np.bincount(some[1], minlength=count)
    return Cells(share, np.array(error), reached, int(group.max()) + 1, float((w**2).sum()))


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
    group = _numbered(None if island is None else np.asarray(island)[good], len(f))
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
        step = _error(w * ((f <= at) - p), group)
        if np.isnan(step):
            found[p] = Value(at, step)
            continue
        low, high = quantile(max(0.0, p - step)), quantile(min(1.0, p + step))
        found[p] = Value(at, 0.5 * (high - low))
    mean_, sd_ = Value(mean, _error(w * centred, group)), Value(sd, _error(of_sd, group))
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
