"""Have the chains converged? R-hat, autocorrelation, equipartition, agreement of the starts."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

from demx.energy import evaluate
from demx.space import MeanFree, distances
from demx.types import Target

RHAT = 1.01
TELLING = 1.2  # a bound that chains in different basins, whose ranks R-hat sees, are clearly beyond


def observables(target: Target, most: int | None = 64):
    """x -> what must have converged: the spectrum of distances, or the first coordinates and |x|².

    most: of the coordinates; None: all of them.
    """
    if isinstance(target.space, MeanFree):
        levels = jnp.linspace(0.0, 1.0, 9)

        def spectrum(x: Array) -> Array:
            radius = jnp.sqrt(jnp.mean(jnp.sum(x**2, axis=-1)))
            return jnp.concatenate([jnp.quantile(distances(x), levels), radius[None]])

        return spectrum
    return lambda x: jnp.concatenate([x.ravel()[:most], jnp.sum(x**2)[None]])


def autocorrelation_time(series: np.ndarray) -> float:
    """τ = 1 + 2 Σ_lag ρ(lag) of (C, T) chains, by Sokal's window (the first lag ≥ 5τ)."""
    length = series.shape[1]
    centred = series - series.mean()  # the common mean: a chain that is stuck shows as long memory
    size = 2 ** math.ceil(math.log2(2 * length))
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariance = np.fft.irfft(spectrum, size, axis=1)[:, :length].mean(axis=0)
    covariance = covariance / np.arange(length, 0, -1)
    if not covariance[0] > 0:
        return 1.0
    tau = 2 * np.cumsum(covariance / covariance[0]) - 1
    window = np.arange(length) >= 5 * tau
    return float(max(1.0, tau[np.argmax(window)] if window.any() else tau[-1]))


def rhat(series: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of (C, T, k) chains, for each of the k observables."""
    from blackjax.diagnostics import rhat as split

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return np.asarray(jax.jit(split)(jnp.asarray(series)))


def rhat_of_perfect(count: int, length: int, k: int) -> float:
    """What the largest R-hat of k observables of (C, T) independent samples stays below, 99 of 100.

    Of m = 2C halves of length h = T/2 R-hat² = 1 - 1/h + F/h, F the ratio of the variances between
    and within them, of Fisher's law with m - 1 and m(h - 1) degrees of freedom; each observable has
    two, one of them folded. With few states a chain that is far above 1.01.
    """
    halves, half = 2 * count, length // 2
    ratio = stats.f.ppf(1 - 0.01 / (2 * k), halves - 1, halves * (half - 1))
    return math.sqrt(1 - 1 / half + ratio / half)


class Mixing(NamedTuple):
    """rhat: the largest over energy and observables; nan if a chain never moved. bound: chains that
    agree are below it, 1.01 or what independent samples of that number have. effective: how many
    independent samples the states are worth, at least, for the mean of any of them."""

    rhat: float
    bound: float
    effective: float


def mixing(target: Target, x: np.ndarray, energies: np.ndarray, count: int) -> Mixing | None:
    """What `count` chains that take turns say of each other: sample i is of chain i mod count.

    None: of one chain, or of chains too short to tell: perfect ones would have an R-hat that those
    in different basins hardly exceed. No energy is called.
    """
    from blackjax.diagnostics import ess_bulk

    length = len(x) // count
    if count < 2 or length < 4:
        return None
    seen = np.asarray(jax.jit(jax.vmap(observables(target, None)))(jnp.asarray(x)))
    seen = np.concatenate([energies[:, None].astype(seen.dtype), seen], axis=1)
    # what is the same in every state says nothing, and has no R-hat
    seen = seen[: count * length, np.ptp(seen, axis=0) > 0]
    if not seen.shape[1]:
        return None
    bound = max(RHAT, rhat_of_perfect(count, length, seen.shape[1]))
    if bound > TELLING:
        return None
    series = np.swapaxes(seen.reshape(length, count, -1), 0, 1)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        effective = np.asarray(jax.jit(ess_bulk)(jnp.asarray(series)))
    still = (np.ptp(series, axis=1) == 0).all(axis=1).any()
    worst = float("nan") if still else float(np.max(rhat(series)))
    return Mixing(worst, bound, float(np.min(effective)))


def _between(values: np.ndarray) -> tuple[float, float]:
    """Mean over (C, T) and its standard error from the spread of the C chain means."""
    means = values.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5)


def diagnose(target: Target, u: np.ndarray, seen: np.ndarray) -> dict:
    """What vouches for kept states u (C, T, dof) with observables (C, T, k): see the keys."""
    from blackjax.diagnostics import ess_bulk

    space, (count, _, dof) = target.space, u.shape

    def pull(u: Array) -> Array:  # x·∇E, whose mean is the number of degrees of freedom
        x = jax.vmap(space.configuration)(u)
        return -jnp.sum((x * evaluate(target, x).score).reshape(len(u), -1), axis=1)

    virial = np.stack([np.asarray(part) for part in jax.lax.map(pull, jnp.asarray(u))])
    near, far = seen[: count // 2].mean(axis=1), seen[count // 2 :].mean(axis=1)
    joint = np.sqrt((near.var(axis=0, ddof=1) + far.var(axis=0, ddof=1)) / (count // 2))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ess = np.asarray(jax.jit(ess_bulk)(jnp.asarray(seen)))
    mean, error = _between(seen[..., 0])
    pulled, pulled_error = _between(virial)
    return {
        "rhat_max": float(np.max(rhat(seen))),
        "ess_min": float(ess.min()),
        "energy_mean": mean,
        "energy_standard_error": error,
        "virial_over_dof": pulled / dof,
        "virial_standard_error": pulled_error / dof,
        "starts_z": (np.abs(near.mean(axis=0) - far.mean(axis=0)) / joint).max().item(),
    }


def passes(diagnostics: dict) -> dict[str, bool]:
    """Each demand by name: converged, equipartition within 2 s.e., both starts agree within 4.

    The virial identity needs a density that vanishes smoothly at the edge of its support.
    """
    d = diagnostics
    return {
        "rhat": d["rhat_max"] < RHAT,
        "virial": abs(d["virial_over_dof"] - 1) < 2 * d["virial_standard_error"],
        "starts": d["starts_z"] < 4,
    }
