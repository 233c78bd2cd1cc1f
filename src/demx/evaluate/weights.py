"""What importance weights say: log w_i = log p̃(x_i) - log q(x_i), x_i ~ q unless said otherwise.

All of them are blind to modes that q never visits; only reference samples of p show those.
A weight of zero, log w = -∞, is legal: a sample outside the support, or a bad one.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from demx.evaluate.summary import student

# Vehtari et al. (2024): beyond it the mean of the weights converges too slowly to be believed
RELIABLE_K = 0.7
FEWEST_FOR_K = 21  # weights that have a tail


class Estimate(NamedTuple):
    """A value and its standard error (NaN where an infinite value has none)."""

    value: float
    standard_error: float


def ess(log_weight: np.ndarray) -> Estimate:
    """Effective sample size as a share: 1/(n Σ w̄²) = mean(w)²/mean(w²), in (0, 1].

    log_weight: (n,). Error by the delta method: each sample moves the value by
    ess · (2w/mean(w) - w²/mean(w²) - 1)/n. With few effective samples both are too optimistic:
    weights not met are not missed; look at `psis_k`.
    """
    w = _weights(log_weight, "ess")
    value = w.mean() ** 2 / (w**2).mean()
    influence = value * (2 * w / w.mean() - w**2 / (w**2).mean() - 1)
    return Estimate(float(value), _error(influence))


def effective_share(log_weight: np.ndarray, island: ArrayLike | None = None) -> float:
    """mean(w)²/mean(w²) of the weights, (n,), or of their means over islands, if that is less.

    Within an island weights forget what was resampled.
    """
    share = ess(log_weight).value
    if island is None:
        return share
    _, number, size = np.unique(island, return_inverse=True, return_counts=True)
    means = np.bincount(number, _weights(log_weight, "ess")) / size
    return min(share, float(means.mean() ** 2 / (means**2).mean()))


def log_z_is(log_weight: np.ndarray, island: np.ndarray | None = None) -> Estimate:
    """log Z ≈ log mean w: log_weight: (n,). Error by the delta method, sd(w)/(mean(w) √n).

    island: (n,) numbers of groups within which weights depend on each other; the error then is
    that of the means of the groups (nan for a single one), enlarged for few of them: by Student's
    t two such errors cover what two cover of a normal.
    """
    w = _weights(log_weight, "log_z_is")
    value = np.log(w.mean()) + np.max(log_weight)
    if island is None:
        return Estimate(float(value), _error(w / w.mean()))
    _, number, size = np.unique(island, return_inverse=True, return_counts=True)
    groups, count = np.bincount(number, w - w.mean()) / w.mean(), len(size)
    if count == 1:
        return Estimate(float(value), float("nan"))
    error = (np.sum(groups**2) * count / (count - 1)) ** 0.5 / len(w)
    return Estimate(float(value), float(error * student(count - 1)))


def weighted_mean(log_weight: np.ndarray, values: np.ndarray) -> Estimate:
    """E_p[v] ≈ Σ w v/Σ w: log_weight, values: (n,). Error by the delta method."""
    w = _weights(log_weight, "weighted_mean")
    values = np.where(w > 0, values, 0.0)  # an energy of +∞ has no part in it
    mean = float(np.sum(w * values) / w.sum())
    return Estimate(mean, _error(w * (values - mean) / w.mean()))


def log_z_lower(log_weight: np.ndarray) -> Estimate:
    """ELBO = E_q[log w] = log Z - KL(q|p): log_weight: (n,). -∞ if any weight is zero."""
    return _mean(_checked(log_weight, "log_z_lower"))


def log_z_upper(log_weight_of_reference: np.ndarray) -> Estimate:
    """EUBO = E_p[log w] = log Z + KL(p|q): log weights (n,) of reference samples of p."""
    log_weight = _checked(log_weight_of_reference, "log_z_upper")
    if np.isneginf(log_weight).any():
        raise ValueError(
            "log_z_upper: a log weight is -inf, but reference samples have p > 0; "
            "were samples of q given, or is the reference bad?"
        )
    return _mean(log_weight)


def nll(log_prob: np.ndarray) -> Estimate:
    """-E_p[log q]: log q (n,) of reference samples of p, q normalised. ∞ if any has q = 0."""
    return _mean(-_checked(log_prob, "nll"))


def psis_k(log_weight: np.ndarray) -> Estimate:
    """k̂ of the generalised Pareto tail of the weights: below 0.7 importance sampling works.

    log_weight: (n,). The tail is the M = ⌈min(n/5, 3√n)⌉ largest weights above the next one;
    k̂ by Zhang and Stephens (2009), shrunk to ½ by a prior worth 10 samples (Vehtari et al. 2024);
    error (1 + k)/√M, that of maximum likelihood. Weights under e⁻⁷⁰⁸ of the largest are zero.
    With fewer than 5 in the tail k̂ = ∞; if the largest M + 1 are all equal, -∞.
    """
    ordered = np.sort(_checked(log_weight, "psis_k", at_least=FEWEST_FOR_K))
    if np.isneginf(ordered[-1]):
        raise ValueError("psis_k: all weights are zero")
    ordered -= ordered[-1]
    count = int(np.ceil(min(len(ordered) / 5, 3 * len(ordered) ** 0.5)))
    threshold = max(ordered[-count - 1], np.log(np.finfo(float).tiny))
    if threshold == 0:
        return Estimate(-np.inf, np.nan)
    # relative to the threshold: k does not depend on the scale, and expm1 keeps close weights apart
    excess = np.expm1(ordered[ordered > threshold] - threshold)
    if len(excess) < 5:
        return Estimate(np.inf, np.nan)
    k = (len(excess) * _pareto_k(excess) + 10 * 0.5) / (len(excess) + 10)
    # the regular asymptotics end at k = -1/2
    return Estimate(k, max(1 + k, 0.5) / len(excess) ** 0.5)


def _pareto_k(excess: np.ndarray) -> float:
    """Shape k of the generalised Pareto density (1 + kx/σ)^(-1/k - 1)/σ of sorted excesses (M,).

    In θ = -k/σ the likelihood is maximal over k at k(θ) = mean log(1 - θx), with the value
    M (log(-θ/k) - k - 1); θ is its mean under this likelihood on a grid of prior quantiles that
    scales with the data (Zhang and Stephens 2009, with 30 rather than 20 points and √M more).
    """
    count = len(excess)
    num_points = 30 + int(count**0.5)
    quartile = excess[int(count / 4 + 0.5) - 1]
    rank = np.arange(1, num_points + 1) - 0.5
    theta = 1 / excess[-1] + (1 - np.sqrt(num_points / rank)) / (3 * quartile)
    with np.errstate(over="ignore", divide="ignore"):  # excesses 10³⁰⁸ apart: k = ∞, likelihood 0
        k = np.log1p(-theta[:, None] * excess).mean(axis=1)
        log_likelihood = count * (np.log(-theta / k) - k - 1)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    best = (theta * posterior).sum() / posterior.sum()
    return float(np.log1p(-best * excess).mean())


def _checked(values: np.ndarray, name: str, at_least: int = 5) -> np.ndarray:
    """The values in float64, if there are enough and none is NaN or +∞."""
    if values.ndim != 1 or len(values) < at_least:
        raise ValueError(
            f"{name}: expected one value a sample and at least {at_least} samples, "
            f"got shape {values.shape}"
        )
    bad = int((np.isnan(values) | np.isposinf(values)).sum())
    if bad:
        raise ValueError(
            f"{name}: {bad} of {len(values)} values are NaN or +inf; a bad sample has "
            "weight zero, -inf"
        )
    return values.astype(float)


def _weights(log_weight: np.ndarray, name: str) -> np.ndarray:
    """w / max w."""
    log_weight = _checked(log_weight, name)
    if np.isneginf(log_weight).all():
        raise ValueError(f"{name}: all weights are zero")
    return np.exp(log_weight - log_weight.max())


def _error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5)


def _mean(values: np.ndarray) -> Estimate:
    if np.isinf(values).any():
        return Estimate(float(values.mean()), np.nan)
    return Estimate(float(values.mean()), _error(values))
