"""The processes of PIS, DDS and DIS, controlled diffusions in discrete time, and their settings.

A path x_0, …, x_K has Gaussian kernels, driven by a control f and standard normals ε_k:

    x_{k+1} = keep_k x_k + gain_k f(t_k, x_k) + spread_k ε_k            (forward, the sampler)
    x_k     = back_k x_{k+1} + back_spread_k ε'_k                       (backward, from x_K ~ p)

The ratio of the two laws of a path, p̃(x_K) Π backward / (start(x_0) Π forward), is its weight:

    log w = log p̃(x_K) - log reference + Σ_k increment_k,      E_forward[w] = Z for every control.

So E_forward[log w] ≤ log Z ≤ E_backward[log w], ELBO and EUBO; they meet for the optimal control,
in the limit of small steps f = ∇log(p_t/reference_t) in all three (arXiv 2307.01198).
"""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from demx.methods.control_network import LOSSES, NOISES
from demx.methods.steps import Kernels, girsanov, kernels_of
from demx.methods.training import Training
from demx.space import Space, log_normal, normal


@runtime_checkable
class Process(Protocol):
    """What PIS, DDS and DIS differ in.

    scale: standard deviation of the reference. increment: of one step of one path, for the shift δ
    that the control gave it; log_reference: of one path's ends; together they are the ratio of
    kernels and start.
    """

    @property
    def num_steps(self) -> int: ...

    @property
    def scale(self) -> float: ...

    def start(self, key: PRNGKeyArray, space: Space, n: int) -> Array: ...

    def kernels(self) -> Kernels: ...

    def increment(
        self, kernel: Kernels, x: Array, x_next: Array, noise: Array, push: Array
    ) -> Array: ...

    def log_reference(self, space: Space, x_0: Array, x_end: Array) -> Array: ...


class Brownian(eqx.Module):
    """PIS: from x_0 = 0 by Brownian motion to N(0, σ²); backward the Brownian bridge.

    After k of K steps the variance is σ² (1 - (1 - k/K)^power): equal steps for power 1 (PIS,
    arXiv 2111.15141), finer ones towards the end for more.
    """

    num_steps: int
    scale: float
    power: float = 1.0

    def start(self, key: PRNGKeyArray, space: Space, n: int) -> Array:
        return jnp.zeros((n, *space.shape))

    def kernels(self) -> Kernels:
        grid = np.linspace(0.0, 1.0, self.num_steps + 1)
        share = 1 - (1 - grid) ** self.power
        now, after, ones = share[:-1], share[1:], np.ones(self.num_steps)
        # differences of the falling power itself: 1 - (1 - …) would cancel at the end
        variance = self.scale**2 * -np.diff((1 - grid) ** self.power)
        back = now / after
        return kernels_of(
            self.scale, grid[:-1], ones, variance, variance**0.5, back, (variance * back) ** 0.5
        )  # fmt: skip

    def increment(
        self, kernel: Kernels, x: Array, x_next: Array, noise: Array, push: Array
    ) -> Array:
        return girsanov(push, noise)

    def log_reference(self, space: Space, x_0: Array, x_end: Array) -> Array:
        return log_normal(space, x_end, self.scale**2)


class OrnsteinUhlenbeck(eqx.Module):
    """DDS: the stationary process of N(0, σ²), x' = √(1-α_k) x + 2σ²(1 - √(1-α_k)) f + σ√α_k ε.

    α_k = α_max cos⁴(π/2 · (k/K + s)/(1 + s)), s = 0.008: large steps first, small ones near the
    target (arXiv 2302.13834, with the exponential integrator). The process is its own reversal.
    """

    num_steps: int
    scale: float
    alpha_max: float = 0.3

    def start(self, key: PRNGKeyArray, space: Space, n: int) -> Array:
        return self.scale * normal(key, space, (n,))

    def alphas(self) -> np.ndarray:
        share = (np.arange(self.num_steps) / self.num_steps + 0.008) / 1.008
        return self.alpha_max * np.cos(0.5 * np.pi * share) ** 4

    def kernels(self) -> Kernels:
        alpha = self.alphas()
        keep, spread = np.sqrt(1 - alpha), self.scale * np.sqrt(alpha)
        # 1 - √(1-α) = α/(1 + √(1-α)), without the cancellation
        gain = 2 * self.scale**2 * alpha / (1 + keep)
        time = np.arange(self.num_steps) / self.num_steps
        return kernels_of(self.scale, time, keep, gain, spread, keep, spread)

    def increment(
        self, kernel: Kernels, x: Array, x_next: Array, noise: Array, push: Array
    ) -> Array:
        return girsanov(push, noise)

    def log_reference(self, space: Space, x_0: Array, x_end: Array) -> Array:
        return log_normal(space, x_end, self.scale**2)


class Reversal(eqx.Module):
    """DIS: Euler-Maruyama on the reversal of dx = -½ β x ds + σ√β dw, from N(0, σ²).

    With b = β(s)/K at the middle of a step, β = β_min + (β_max - β_min) s^power at noising time s,
    0 at the target, and the score of the noised target written as -x/σ² + f, the reversed drift
    ½βx + σ²β·score gives

        x' = (1 - b/2) x + σ² b f + σ√b ε     and, backward, x = (1 - b/2) x' + σ√b ε', the noising

    Neither kernel is exactly reversible, so the weight is the ratio of kernels (arXiv 2211.01364).
    """

    num_steps: int
    scale: float
    beta_min: float = 0.1
    beta_max: float = 20.0
    power: float = 1.0

    def start(self, key: PRNGKeyArray, space: Space, n: int) -> Array:
        return self.scale * normal(key, space, (n,))

    def kernels(self) -> Kernels:
        time = np.arange(self.num_steps) / self.num_steps
        noising = (1 - time - 0.5 / self.num_steps) ** self.power
        b = (self.beta_min + (self.beta_max - self.beta_min) * noising) / self.num_steps
        spread = self.scale * np.sqrt(b)
        return kernels_of(self.scale, time, 1 - b / 2, spread**2, spread, 1 - b / 2, spread)

    def increment(
        self, kernel: Kernels, x: Array, x_next: Array, noise: Array, push: Array
    ) -> Array:
        back = (x - kernel.back * x_next) / kernel.back_spread
        # |ε|² - |ε'|² as a product: two sums of d squares would cancel
        return 0.5 * jnp.sum((noise - back) * (noise + back))

    def log_reference(self, space: Space, x_0: Array, x_end: Array) -> Array:
        return log_normal(space, x_0, self.scale**2)


class Settings(eqx.Module):
    """What PIS, DDS and DIS share.

    outer_steps, inner_steps: a run is so many steps of so many updates. num_steps: K of a path.
    loss: 'kl', 'log_variance' or 'log_huber'. schedule, optimiser: as of the matching methods.
    noise: 'fixed', that of the process, or 'learned', r(t) times as wide: the finite steps of an
    optimal control end in less noise than the process has, by a share of the step.
    scale: σ of the reference, about the size of the target. score_clip: longest vector of σ∇log p̃
    in the control; push_clip: longer ones are let through if they shift a step by no more than so
    many of its own widths, as the fine steps at the end are. score_start: a(t) at first.
    detach_score: no second derivatives of the energy, at the price of a biased gradient of the KL
    (the others need none either way). remat: memory O(K·d) a path, for a second forward pass.
    """

    outer_steps: int = 100
    inner_steps: int = 50
    batch_size: int = 256
    num_steps: int = 100
    learning_rate: float = 5e-4
    schedule: str = "constant"
    gradient_clip: float = 1.0
    optimiser: str = "adam"
    ema: float = 0.999
    loss: str = "log_variance"
    noise: str = "fixed"
    scale: float = 1.0
    score_clip: float = 100.0
    push_clip: float = 0.0
    score_start: float = 0.0
    detach_score: bool = True
    remat: bool = False

    def __check_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps: expected at least 1, got {self.num_steps}")
        _positive(scale=self.scale, score_clip=self.score_clip)
        if not self.push_clip >= 0:
            raise ValueError(f"push_clip: expected at least 0, got {self.push_clip}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss: expected {', '.join(LOSSES)}, got {self.loss!r}")
        if self.noise not in NOISES:
            raise ValueError(f"noise: expected {' or '.join(NOISES)}, got {self.noise!r}")
        if LOSSES[self.loss].whole and self.batch_size < 2:
            raise ValueError(f"batch_size: expected at least 2 with {self.loss}, got 1")
        self.training()

    def training(self) -> Training:
        """The sizes and rates as the optimiser takes them; checks them too."""
        return Training(
            outer_steps=self.outer_steps,
            inner_steps=self.inner_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            gradient_clip=self.gradient_clip,
            optimiser=self.optimiser,
            ema=self.ema,
        )

    @abstractmethod
    def process(self) -> Process: ...


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")


class PISSettings(Settings):
    """power: 1 for equal steps, more for finer ones at the end (see `Brownian`)."""

    power: float = 1.0

    def __check_init__(self) -> None:
        _positive(power=self.power)

    def process(self) -> Brownian:
        return Brownian(self.num_steps, self.scale, self.power)


class DDSSettings(Settings):
    """alpha_max: the share of x that the first step replaces (see `OrnsteinUhlenbeck`)."""

    alpha_max: float = 0.3

    def __check_init__(self) -> None:
        if not 0 < self.alpha_max <= 1:
            raise ValueError(f"alpha_max: expected in (0, 1], got {self.alpha_max}")

    def process(self) -> OrnsteinUhlenbeck:
        return OrnsteinUhlenbeck(self.num_steps, self.scale, self.alpha_max)


class DISSettings(Settings):
    """beta_min, beta_max: rates of the noising, at the target and at the start; power: 1 for a rate
    that falls evenly, more for finer steps at the end (see `Reversal`)."""

    beta_min: float = 0.1
    beta_max: float = 20.0
    power: float = 1.0

    def __check_init__(self) -> None:
        _positive(beta_min=self.beta_min, power=self.power)
        if not self.beta_min <= self.beta_max < 2 * self.num_steps:
            raise ValueError(
                "beta_max: expected from beta_min to below 2·num_steps, where Euler's steps are "
                f"stable, got {self.beta_max}"
            )

    def process(self) -> Reversal:
        return Reversal(self.num_steps, self.scale, self.beta_min, self.beta_max, self.power)
