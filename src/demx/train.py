"""One loop for every method: step, log, evaluate, checkpoint, resume."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from demx.errors import Diverged, UserError
from demx.interruption import Inside, Overtime, Stoppable, stop_requested
from demx.types import Method
from demx.watch import Stopping, Watch


@dataclass(frozen=True)
class Progress:
    """Where a run stands. seconds: training time, evaluation not counted. kept: the step of the
    state to sample from. given_up_calls: of steps that were stopped in their midst, not among
    energy_calls: those are the same however often a run was interrupted."""

    step: int = 0
    energy_calls: int = 0
    evaluation_calls: int = 0
    seconds: float = 0.0
    kept: int = 0
    watch: Watch = field(default_factory=Watch)
    given_up_calls: int = 0

    @classmethod
    def of(cls, header: dict[str, Any]) -> "Progress":
        """From the header of a checkpoint."""
        watch = header["watch"]
        watch = Watch(**watch | {"recent": tuple(watch["recent"])})
        return cls(**header | {"watch": watch})


@dataclass(frozen=True)
class Budget:
    """Stop when the training time or the energy calls are spent."""

    seconds: float = math.inf
    energy_calls: float = math.inf

    def spent(self, progress: Progress, calls_per_step: int) -> bool:
        # a step that would go beyond the energy calls is not begun
        over = progress.energy_calls + calls_per_step > self.energy_calls
        return over or progress.seconds >= self.seconds


def parse_budget(text: Any) -> Budget:
    """'90s', '10m', '2h' or '5e6calls'."""
    if text is None:
        return Budget()
    text = str(text)
    for unit, factor in (("calls", 0), ("s", 1), ("m", 60), ("h", 3600)):
        if text.endswith(unit):
            try:
                number = float(text[: -len(unit)])
            except ValueError:
                break
            if not (number > 0 and math.isfinite(number)):
                break
            return Budget(energy_calls=number) if unit == "calls" else Budget(number * factor)
    raise UserError(
        f"budget: expected a time like 90s, 10m, 2h or calls like 5e6calls, got {text!r}"
    )


@runtime_checkable
class Keeper(Protocol):
    """Where states and metrics are kept; `demx.store.Store` is one.

    What is saved is a pair: the latest state and the one to sample from.
    """

    def save(self, state: Any, header: dict[str, Any]) -> None: ...
    def load(self, like: Any) -> tuple[Any, dict[str, Any]] | None: ...
    def append(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None: ...
    def rewind(self, step: int) -> None: ...


class Trained(NamedTuple):
    """state: the latest. kept: the one to sample from (`demx.watch`). ended: why the run ended:
    'steps', 'budget', 'converged' or 'interrupted'."""

    state: Any
    kept: Any
    progress: Progress
    ended: str


def train(
    method: Method,
    *,
    seed: int,
    outer_steps: int,
    budget: Budget = Budget(),  # noqa: B008
    keeper: Keeper | None = None,
    evaluate: Callable[[Any, Any], tuple[dict[str, float], int]] | None = None,
    every: int = 0,
    observe: Callable[[Progress, dict[str, Any]], None] = lambda progress, metrics: None,
    checkpoint_seconds: float = 15.0,
    stopping: Stopping = Stopping(),  # noqa: B008
    energy: Stoppable = Inside(),  # noqa: B008
) -> Trained:
    """Run `method.step` until the steps or the budget end; resume if the keeper has a checkpoint.

    All randomness is a function of (seed, step), so an interrupted run goes on exactly as if it had
    not been. `evaluate(key, state)` gives metrics and the energy calls they cost; the metric
    `validation`, if there is one, decides which state is kept and, with `stopping`, when to end.
    energy: by which a step can be stopped in its midst, when the user asks or time is up and the
    step would take more than a tenth of the budget longer. It is given up, and done again later.
    """
    key_init, key_step, key_evaluate = jax.random.split(jax.random.key(seed), 3)
    state, progress = method.init(key_init), Progress(energy_calls=method.calls_at_init)
    kept = state
    found = keeper.load((state, kept)) if keeper else None
    if found:
        (state, kept), header = found
        progress = Progress.of(header)
    if keeper:
        keeper.rewind(progress.step)
    saved = progress

    def save():
        if keeper and saved != progress:
            keeper.save((state, kept), asdict(progress))

    def ended() -> str | None:
        if progress.watch.converged(stopping):
            return "converged"
        if progress.step >= outer_steps:
            return "steps"
        if budget.spent(progress, method.calls_per_step):
            return "budget"
        return "interrupted" if stop() else None

    with stop_requested() as stop:
        while (why := ended()) is None:
            before = state, kept, progress
            clock = Overtime(energy, stop, progress.seconds, budget.seconds, method.calls_per_step)
            try:
                with energy.stopping(clock.over):
                    new, info = method.step(jax.random.fold_in(key_step, progress.step), state)
                    metrics = {k: v.item() for k, v in info._asdict().items() if v is not None}
                skipped = metrics.get("skipped", 0.0)
                if not math.isfinite(metrics.get("loss", 0.0)) or skipped > 0.5:
                    save()
                    raise Diverged(
                        f"training diverged in outer loop {progress.step + 1}: "
                        f"{100 * skipped:.0f} % of the updates were not finite "
                        f"({metrics.get('bad', 0)} bad energies). The last good state (loop "
                        f"{progress.step}) is kept. Try a lower learning_rate, a clip of the score "
                        "(clip.max_norm=100), more samples (draws.num_samples) or a larger "
                        "noise.sigma_min."
                    )
                state = new
                progress = replace(
                    progress,
                    step=progress.step + 1,
                    energy_calls=progress.energy_calls
                    + metrics.pop("energy_calls", method.calls_per_step),
                    seconds=progress.seconds + clock.seconds,
                )
                metrics = {"step": progress.step, "energy_calls": progress.energy_calls, **metrics}
                last = progress.step == outer_steps
                if evaluate and every and (progress.step % every == 0 or last):
                    with energy.stopping(clock.asked):
                        key = jax.random.fold_in(key_evaluate, progress.step)
                        values, calls = evaluate(key, state)
                    metrics["evaluation"] = values
                    progress = replace(progress, evaluation_calls=progress.evaluation_calls + calls)
                    if "validation" in values:
                        watch = progress.watch.look(values["validation"])
                        progress = replace(progress, watch=watch)
            except Exception:
                if not clock.reached:
                    raise
                state, kept, progress = before
                progress = replace(
                    progress,
                    seconds=progress.seconds + clock.seconds,
                    given_up_calls=progress.given_up_calls + clock.calls,
                )
                why = "interrupted" if stop() else "budget"
                break
            if progress.watch.good:
                kept, progress = state, replace(progress, kept=progress.step)
            if keeper:
                keeper.append(metrics, {"step": progress.step, "seconds": progress.seconds})
            observe(progress, metrics)
            if progress.seconds - saved.seconds >= checkpoint_seconds:
                save()
                saved = progress
        save()
        return Trained(state, kept, progress, why)
