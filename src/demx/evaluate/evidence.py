"""log Z from weighted samples."""

from typing import NamedTuple

import numpy as np

from demx.errors import UserError
from demx.evaluate.weights import FEWEST_FOR_K, RELIABLE_K, effective_share, log_z_is, psis_k
from demx.types import Samples


class LogZ(NamedTuple):
    """log ∫ exp(-E), its error, and of the weights the effective share and k̂ (None: not by
    weights, or too few for a tail)."""

    value: float
    standard_error: float
    ess: float | None
    n: int
    bad: int  # samples without a density or energy: their weight is 0, but should not be
    psis_k: float | None = None

    @property
    def of_weights(self) -> str:
        """What the weights say of themselves, in words; '' without any."""
        if self.ess is None:
            return ""
        told = f"effective share of the weights {self.ess:.3g}"
        if self.psis_k is None:
            return told
        doubt = ": not to be trusted, a few weights decide" * (self.psis_k >= RELIABLE_K)
        return f"{told}, k̂ = {self.psis_k:.2f}{doubt}"


def log_z(drawn: Samples) -> LogZ:
    """log Z ≈ log mean w with its error and effective share, from weighted samples.

    Those outside the support rightly have weight 0; bad ones too, and many are refused.
    """
    n = len(drawn.x)
    if drawn.log_z is not None:
        return LogZ(*drawn.log_z, None, n, drawn.bad)
    if drawn.bad > 0.05 * n:
        raise UserError(
            f"log_z: {drawn.bad} of {n} samples have no finite density or energy, so the "
            "estimate would be too low; train longer"
        )
    log_weight = np.asarray(drawn.log_weight, float)
    island = None if drawn.island is None else np.asarray(drawn.island)
    try:
        share = effective_share(log_weight, island)
        k = psis_k(log_weight).value if n >= FEWEST_FOR_K else None
        return LogZ(*log_z_is(log_weight, island), share, n, drawn.bad, k)
    except ValueError as error:
        raise UserError(f"log_z: {error}") from error
