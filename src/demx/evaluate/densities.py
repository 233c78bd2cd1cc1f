"""What a density q says: importance weights at its samples, likelihoods at reference samples."""

import numpy as np

from demx.evaluate import weights
from demx.evaluate.evaluation import Metric

FEWEST = 100  # samples that a tail index or a bound can be read from
TOLERATED = 0.05  # share of unfinished solves beyond which an estimate is not given


def weight_metrics(
    log_weight: np.ndarray, log_z: float | None = None, island: np.ndarray | None = None
) -> dict[str, Metric]:
    """What the importance weights p̃/q of n samples say; perfect: ESS 1, both bounds at log Z.

    island: as in `weights.log_z_is`.
    """
    n, known = len(log_weight), _known(log_z)
    return {
        "ess": Metric(*weights.ess(log_weight), 1.0, 0.0, n, two_sided=True),
        "psis_k": Metric(*weights.psis_k(log_weight), n=n),
        "log_z_lower": Metric(*weights.log_z_lower(log_weight), **known, n=n, two_sided=True),
        "log_z_is": Metric(*weights.log_z_is(log_weight, island), **known, n=n, two_sided=True),
    }


def evidence_metric(found: tuple[float, float], n: int, log_z: float | None = None) -> Metric:
    """log Z, with its error, that a method knows other than by weights, beside the true one."""
    return Metric(*found, **_known(log_z), n=n, two_sided=True)


def _known(log_z: float | None) -> dict[str, float]:
    return {} if log_z is None else {"floor": log_z, "floor_standard_error": 0.0}


def likelihood_metrics(
    log_prob: np.ndarray, energies: np.ndarray, log_z: float | None = None
) -> dict[str, Metric]:
    """What q says of n reference samples with energies E: mean -log q, and the EUBO.

    EUBO - log Z = KL(p‖q). The entropy, mean E + log Z, stands beside the NLL, but both are means
    over the same samples: their difference has the EUBO's standard error, not their own.
    """
    n, nll = len(log_prob), weights.nll(log_prob)
    upper = upper_metric(-energies - log_prob, log_z)
    if log_z is None:
        return {"nll": Metric(*nll, n=n), "log_z_upper": upper}
    entropy = float(energies.mean()) + log_z
    error = float(energies.std(ddof=1) / n**0.5)
    return {"nll": Metric(*nll, entropy, error, n), "log_z_upper": upper}


def upper_metric(log_weight: np.ndarray, log_z: float | None = None) -> Metric:
    """The EUBO of the log weights (n,) of reference samples, or of paths that end in them."""
    found, n = weights.log_z_upper(log_weight), len(log_weight)
    return Metric(*found, n=n) if log_z is None else Metric(*found, log_z, 0.0, n, two_sided=True)


def judge(
    log_weight: np.ndarray,
    log_prob: np.ndarray | None,
    energies: np.ndarray | None,
    log_z: float | None,
    island: np.ndarray | None = None,
    backward: np.ndarray | None = None,
) -> tuple[dict[str, Metric], list[str]]:
    """All that can be said, and notes on what cannot: nothing is dropped without a word.

    backward: (n,) log weights of paths that end in reference samples.
    """
    found, notes = {}, []
    lost = int((~np.isfinite(log_weight)).sum())
    if lost:
        notes.append(
            f"{lost} of {len(log_weight)} weights are 0: outside the support, or no number."
        )
    if len(log_weight) - lost < FEWEST:
        notes.append(f"Fewer than {FEWEST} weights are left: nothing is said of them.")
    else:
        found |= weight_metrics(log_weight, log_z, island)
    if log_prob is not None and energies is not None:
        good = np.isfinite(log_prob)
        lost = int((~good).sum())
        if lost:
            notes.append(f"At {lost} of {len(log_prob)} reference samples the solver gave up.")
        if lost <= TOLERATED * len(log_prob):
            found |= likelihood_metrics(log_prob[good], energies[good], log_z)
        else:
            notes.append("These are too many for an NLL.")
    if backward is not None:
        good = np.isfinite(backward)
        if lost := int((~good).sum()):
            notes.append(f"{lost} of {len(backward)} paths back from reference samples got lost.")
        if lost <= TOLERATED * len(backward):
            found["log_z_upper"] = upper_metric(backward[good], log_z)
        else:
            notes.append("These are too many for an upper bound of log Z.")
    return found, notes
