"""What the networks of PIS, DDS and DIS are told of a step, against closed forms."""

import numpy as np
import pytest

from demx.methods.processes import Brownian, OrnsteinUhlenbeck, Reversal
from demx.methods.steps import FARTHEST

SCALE = 1.7
PROCESSES = {
    "pis": Brownian(24, SCALE, 1.5),
    "dds": OrnsteinUhlenbeck(24, SCALE, 0.6),
    "dis": Reversal(24, SCALE, 0.5, 8.0, 1.5),
}


def columns(process):
    return process.kernels()._replace(
        **{name: np.asarray(c, float) for name, c in process.kernels()._asdict().items()}
    )


def backward(kernels):
    """λ_k and τ_k² of x_k = λ_k x_K + τ_k ε, one step of the backward law after the other."""
    signal, variance, found = 1.0, 0.0, []
    for back, spread in zip(kernels.back[::-1], kernels.back_spread[::-1], strict=True):
        signal, variance = back * signal, back**2 * variance + spread**2
        found.append((signal, variance))
    return np.array(found[::-1]).T


@pytest.mark.parametrize("name", PROCESSES)
def test_the_level_is_the_noise_over_the_end_and_the_unit_the_size_of_a_control(name):
    kernels = columns(PROCESSES[name])
    signal, variance = backward(kernels)
    # x_0 = 0 of Brownian motion knows nothing of the end
    ratio = np.full(len(signal), FARTHEST)
    np.divide(np.sqrt(variance), SCALE * signal, out=ratio, where=signal > 0)
    ratio = np.minimum(ratio, FARTHEST)
    np.testing.assert_allclose(np.exp(2 * kernels.level), ratio, rtol=2e-5)
    left = (1 / SCALE**2 + 1 / (SCALE * ratio) ** 2) ** -0.5  # of the end, beside the reference
    forward = np.cumprod(kernels.keep[::-1])[::-1]
    np.testing.assert_allclose(kernels.unit, forward / left, rtol=2e-5)


@pytest.mark.parametrize("name", ["pis", "dds"])
def test_levels_and_units_of_bridges_and_stationary_processes(name):
    """Brownian motion at a share s of its variance: τ/λσ = √((1-s)/s), and σ√(1-s) is left.

    The stationary process at a signal λ: √(1-λ²)/λ and σ√(1-λ²).
    """
    process = PROCESSES[name]
    kernels, steps = columns(process), np.arange(process.num_steps)
    if name == "pis":
        hidden, keep = (1 - steps / process.num_steps) ** process.power, 1.0
        with np.errstate(divide="ignore"):
            ratio = np.sqrt(hidden / (1 - hidden))
    else:
        keep = np.cumprod(np.sqrt(1 - process.alphas())[::-1])[::-1]
        hidden = 1 - keep**2
        ratio = np.sqrt(hidden) / keep
    np.testing.assert_allclose(np.exp(2 * kernels.level), np.minimum(ratio, FARTHEST), rtol=2e-5)
    near = ratio < FARTHEST
    want = (keep / (SCALE * np.sqrt(hidden)))[near]
    np.testing.assert_allclose(kernels.unit[near], want, rtol=2e-5)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_control_of_unit_size_shifts_the_last_step_by_its_noise(name):
    """By δ = gain·unit/spread, which is 1 up to the share of the end that one step hides."""
    kernels = columns(PROCESSES[name])
    hidden = (kernels.back_spread[-1] / SCALE) ** 2
    assert abs((kernels.gain * kernels.unit / kernels.spread)[-1] - 1) < 2 * hidden
