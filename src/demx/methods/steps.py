"""The numbers of one step of a controlled process, and the parts of its weight.

See `demx.methods.processes` for the formulas.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Kernels(NamedTuple):
    """The numbers of the steps k = 0, …, K-1; `time` is t_k in [0, 1).

    With x_k = λ_k x_K + τ_k ε backward, x_K is known from x_k as from x_K + (τ_k/λ_k) ε: `level` is
    that of such a noise to a network, ½ log(τ_k/λ_k σ). Beside the reference N(0, σ²) it leaves x_K
    a spread s_k, 1/s_k² = 1/σ² + λ_k²/τ_k², and the gradient of log E[p/reference | x_k] is of the
    size of `unit` = Π_{j≥k} keep_j / s_k.
    """

    time: Float[Array, "*K"]
    level: Float[Array, "*K"]
    unit: Float[Array, "*K"]
    keep: Float[Array, "*K"]
    gain: Float[Array, "*K"]
    spread: Float[Array, "*K"]
    back: Float[Array, "*K"]
    back_spread: Float[Array, "*K"]

    def push(self, f: Array) -> Array:
        """δ = gain f/spread: how far the control shifts the normal of a step."""
        return (self.gain / self.spread) * f


FARTHEST = 50.0  # τ/λσ of a start that knows nothing of x_K, for the network


def kernels_of(
    scale: float, time: np.ndarray, keep: np.ndarray, gain: np.ndarray, spread: np.ndarray,
    back: np.ndarray, back_spread: np.ndarray,
) -> Kernels:  # fmt: skip
    signal = np.cumprod(back[::-1])[::-1]
    after = np.append(signal, 1.0)[1:]
    # in units of x_K: (τ_k/λ_k)² = Σ_{j≥k} (back_spread_j/λ_{j+1} back_j)²
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = np.where(signal > 0, (back_spread / (after * back)) ** 2, np.inf)
    ratio = np.minimum(np.cumsum(noise[::-1])[::-1] ** 0.5 / scale, FARTHEST)
    left = scale * ratio / np.sqrt(1 + ratio**2)
    unit = np.cumprod(keep[::-1])[::-1] / left
    columns = time, 0.5 * np.log(ratio), unit, keep, gain, spread, back, back_spread
    return Kernels(*(jnp.asarray(column, float) for column in columns))


def girsanov(push: Array, noise: Array) -> Array:
    """-δ·ε - |δ|²/2: log of the uncontrolled over the controlled kernel."""
    return -jnp.sum(push * (noise + 0.5 * push))


def widened(noise: Array, log_width: Array, dof: int) -> Array:
    """log of N(ν; 0, 1) over N(ν; 0, r²), ν = rε: ½|ν|²(r⁻² - 1) + dof log r.

    What the increment of a step, made for r = 1, lacks when its noise is r times as wide.
    """
    return 0.5 * jnp.sum(noise**2) * jnp.expm1(-2 * log_width) + dof * log_width
