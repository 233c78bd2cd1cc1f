"""The contracts: what a target, a method and a set of samples are."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.display import html_table, text_table, with_error
from demx.errors import UserError
from demx.space import Space

RESERVED = ("energy", "log_weight", "island", "chain", "draw")  # samples have their own


def check_sites(names: Iterable[str]) -> None:
    """Refuse names of a target's own for its numbers that would be taken for something else."""
    for name in names:
        if name in RESERVED:
            raise UserError(
                f"{name}: expected no site of this name, for samples have something else that is "
                "called so; give it another name"
            )


@runtime_checkable
class Target(Protocol):
    """A density known up to a constant, p(x) ∝ exp(-E(x)), on a space.

    Only `space` and `log_density` are needed. A target may also offer

    - `log_density_and_score(xs)`: log p̃, (N,), and its gradient along the space, (*shape, N), for
      points along the last axis, (*shape, N), in one fused pass (see `demx.energy`);
    - `shaken(x, sigma, noise)`: log p̃(x_r + σ_r ε_k), (R, K), of points (R, *shape) and a block of
      noise (*shape, K) that they share, and the function w ↦ Σ_k w_rk ∇log p̃(x_r + σ_r ε_k). Only
      where renumbered equal particles, and exchanged or reflected axes, change nothing. A sample
      of weight 0 has no say in it, whatever its gradient;
    - `sample(key, n)`: exact samples, and `log_z`: the exact log ∫ exp(-E);
    - `smoothed(variance)`: the target p_0 * N(0, variance), the oracle of the tests;
    - `modes`, `mode_scale`: centres and common standard deviation of its modes;
    - `start`: points, (n, *shape), where chains begin unless they are told others;
    - `named(x)`: what samples x, (n, *shape), are to a user: arrays (n, …) by name, such as the
      sites of a model. Files, summaries and reports have them; `RESERVED` names are refused;
    - of atoms, for files of them: `symbols`, their elements; `angstrom`, the length of one unit of
      x in Å; `electronvolts(x, energy)`, energies (n,) without what demx has added, such as a trap;
      `temperature` in K.
    """

    @property
    def space(self) -> Space: ...

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, ""]:
        """log p̃(x) = -E(x) for one x of shape `space.shape`."""
        ...


class Samples(NamedTuple):
    """Draws of a sampler. What cannot be had is None, never 0 or nan.

    x: (n, *shape). log_weight: (n,) unnormalised log importance weights, p̃/q.
    log_prob: (n,) the sampler's own log-density. energy_calls: what drawing them cost. bad: how
    many have no finite density or energy; their log_weight is -∞. island: (n,) samples of one
    island depend on each other: particles that resampled together, the states of a chain (chains
    take turns: i mod C), copies of a point. acceptance: of Metropolis moves. bad_calls: energies on
    the way that were not finite. log_z: value and standard error, where a method knows them other
    than by the mean weight.
    """

    x: Float[Array, "n ..."]
    log_weight: Float[Array, " n"] | None = None
    log_prob: Float[Array, " n"] | None = None
    energy_calls: int = 0
    bad: int = 0
    island: Int[Array, " n"] | None = None
    acceptance: float | None = None
    bad_calls: int = 0
    log_z: tuple[float, float] | None = None

    def _rows(self) -> list[list[str]]:
        found = [["x", f"{self.x.dtype} {tuple(self.x.shape)}"]]
        if isinstance(self.x, Tracer):  # inside a transformation there are no numbers yet
            return found
        if self.log_weight is not None:
            weights = "log_weight"
            if np.isfinite(largest := np.max(self.log_weight, initial=-np.inf)):
                w = np.exp(np.asarray(self.log_weight, float) - largest)
                weights += f", effective share {w.mean() ** 2 / (w * w).mean():.3g}"
            found.append(["weights", weights])
        known = [name for name in ("log_prob", "island") if getattr(self, name) is not None]
        if known:
            found.append(["also", ", ".join(known)])
        if self.acceptance is not None:
            found.append(["acceptance", f"{self.acceptance:.2f}"])
        if self.log_z is not None:
            found.append(["log Z", with_error(*self.log_z)])
        found.append(["energy calls", f"{self.energy_calls:,}"])
        if self.bad or self.bad_calls:
            told = f"{self.bad} samples, {self.bad_calls} energies on the way"
            found.append(["not finite", told])
        return found

    def __repr__(self) -> str:
        return text_table("Samples", self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), header=False, title="Samples")


class Info(NamedTuple):
    """What a person wants to see of a step; the next step does not need it. None: has none.

    loss: mean loss. gradient_norm: mean norm before clipping. ess: effective share of the
    importance weights (of matching: of the K samples of an estimate; of a walk, which has none, the
    share of its moves that was accepted). clipped: share of score
    vectors that were clipped. bad: evaluations and new samples that were not finite. unusable:
    regression points left out because their target was not finite. skipped: share of the updates
    that were not finite and so not made. acceptance: of Metropolis moves. energy_calls: of this
    step, where `Method.calls_per_step` is only their upper bound. restarted: chains that were
    lost, at energies beyond all reason, and were begun again. traded: share of the trades between
    temperatures of these moves that were made.
    """

    loss: Float[Array, ""] | None = None
    gradient_norm: Float[Array, ""] | None = None
    ess: Float[Array, ""] | None = None
    clipped: Float[Array, ""] | None = None
    bad: Int[Array, ""] | None = None
    unusable: Int[Array, ""] | None = None
    skipped: Float[Array, ""] | None = None
    acceptance: Float[Array, ""] | None = None
    energy_calls: Int[Array, ""] | None = None
    restarted: Int[Array, ""] | None = None
    traded: Float[Array, ""] | None = None


class Method(NamedTuple):
    """A sampler as pure functions on an explicit state.

    `outer_steps`: steps of a whole run. `calls_per_step` and `calls_at_init` are exact numbers of
    energy calls (of a step an upper bound if its `Info` counts them). `log_prob` and
    `sample_weighted` exist for methods that know their own density; otherwise they are None.
    So does `anneal`, SMC along a learned path, for methods that have one. `weighted`: what `sample`
    gives follows p only with its weights. `weigh_backward(key, state, x)`: log weights of random
    paths that end in reference samples x; their mean is the EUBO. `sample_calls(n)`: the energy
    calls of n samples, at most, where that is known before they are drawn. `plan(state, steps)`:
    the state of a run that is to end after so many steps, of methods whose rate falls to that end.
    """

    init: Callable[[PRNGKeyArray], Any]
    step: Callable[[PRNGKeyArray, Any], tuple[Any, Info]]
    sample: Callable[[PRNGKeyArray, Any, int], Samples]
    calls_per_step: int = 0
    calls_at_init: int = 0
    log_prob: Callable[[Any, Array], Array] | None = None
    sample_weighted: Callable[[PRNGKeyArray, Any, int], Samples] | None = None
    anneal: Callable[[PRNGKeyArray, Any, int, Any], Samples] | None = None
    outer_steps: int = 1
    weighted: bool = False
    weigh_backward: Callable[[PRNGKeyArray, Any, Array], Samples] | None = None
    sample_calls: Callable[[int], int] | None = None
    plan: Callable[[Any, int], Any] | None = None
