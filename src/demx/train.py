"""One loop for every method: step, log, evaluate, checkpoint, resume."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from demx.budget import Budget, Looks
from demx.errors import Diverged, GivenUp, UserError
from demx.interruption import GRACE, Inside, Overtime, Stoppable, stop_requested
from demx.types import Method
from demx.watch import Stopping, Watch

LATEST = 10  # steps that the pace is a mean over
FALL = 0.1  # of its steps that a converged run still makes


@dataclass(frozen=True)
class Progress:
    """Where a run stands. seconds: training time with what came before it, evaluation not counted.
    kept: the step of the state to sample from. given_up_calls: of steps and looks that were stopped
    in their midst, not among energy_calls: those are the same however often a run was interrupted.
    due: what the last step told, while the look at its samples is still to be made. pace: seconds
    of a step, a mean over the latest. end: the step that the run will end with, as far as is known.
    last: that of a run that has converged. look_calls: the most that a look has taken."""

    step: int = 0
    energy_calls: int = 0
    evaluation_calls: int = 0
    seconds: float = 0.0
    kept: int = 0
    watch: Watch = field(default_factory=Watch)
    given_up_calls: int = 0
    due: dict[str, Any] | None = None
    pace: float | None = None
    end: int = 0
    last: int | None = None
    look_calls: int = 0

    @property
    def all_calls(self) -> int:
        """Of training and of the looks at its samples: what a budget counts."""
        return self.energy_calls + self.evaluation_calls

    @classmethod
    def of(cls, header: dict[str, Any]) -> "Progress":
        """From the header of a checkpoint."""
        watch = header["watch"]
        watch = Watch(**watch | {"recent": tuple(watch["recent"])})
        known = {field.name for field in fields(cls)}
        return cls(**{k: v for k, v in header.items() if k in known} | {"watch": watch})


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
    spent: float = 0.0,
    keeper: Keeper | None = None,
    evaluate: Callable[[Any, Any], tuple[dict[str, float], int]] | None = None,
    every: int = 0,
    look_calls: int = 0,
    observe: Callable[[Progress, dict[str, Any]], None] = lambda progress, metrics: None,
    checkpoint_seconds: float = 15.0,
    stopping: Stopping = Stopping(),  # noqa: B008
    energy: Stoppable = Inside(),  # noqa: B008
    acknowledge: Callable[[], None] = lambda: None,
) -> Trained:
    """Run `method.step` until the steps or the budget end; resume if the keeper has a checkpoint.

    All randomness is a function of (seed, step), so an interrupted run goes on exactly as if it had
    not been. `evaluate(key, state)` gives metrics and the energy calls they cost; the metric
    `validation`, if there is one, decides which state is kept, of those that were looked at, and,
    with `stopping`, when to end. look_calls: what they cost, as far as it is known before the
    first. Of a budget of energy calls those of the looks to come are kept back, also of the end's;
    but there are none if they would cost more than half of the steps.
    spent: seconds of the budget that went by before, of a run that begins here.
    Before every step the method is told after which the run is to end (`Method.plan`): the last,
    or what the budget has room for (of time: by the pace so far, once a step has shown it that
    compiled nothing), or soon, if the run has converged. So with a budget in time the clock decides
    also how a run goes on, not only when it ends.
    energy: by which a step can be stopped in its midst, when the user asks or time is up and the
    step would take more than a tenth of the budget longer. It is given up, and done again later;
    so is a look at the samples, and the step before it stays.
    acknowledge: called as soon as the user asks to stop, which the step that has begun may outlive.
    """
    key_init, key_step, key_evaluate = jax.random.split(jax.random.key(seed), 3)
    with stop_requested(acknowledge) as stop:
        like = eqx.filter_eval_shape(method.init, key_init)  # what init costs is not spent again
        found = keeper.load((like, like)) if keeper else None
        if found:
            (state, kept), header = found
            progress = Progress.of(header)
            saved = progress, header.get("ended")
        else:
            state, seconds = _begin(method, key_init, Overtime(energy, stop, spent, budget.seconds,
                                                               math.inf))  # fmt: skip
            kept, progress = state, Progress(energy_calls=method.calls_at_init, seconds=seconds)
            saved = progress, None
        if keeper:
            keeper.rewind(progress.step - (progress.due is not None))

        def save(why: str | None = None, after: float = 0.0) -> None:
            nonlocal saved
            if keeper and saved != (progress, why) and progress.seconds - saved[0].seconds >= after:
                keeper.save((state, kept), asdict(progress) | {"ended": why})
                saved = progress, why

        known = Looks(every if evaluate else 0, look_calls)
        known = budget.looks(known, method.calls_at_init, method.calls_per_step, outer_steps)

        def looks() -> Looks:
            measured = progress.look_calls
            return Looks(every if evaluate else 0, measured) if measured else known

        def room() -> float:
            return budget.room(
                progress.seconds, progress.all_calls, method.calls_per_step, progress.pace,
                None if isinstance(energy, Inside) else GRACE, looks(), progress.step,
            )  # fmt: skip

        def end() -> int:
            return int(min(outer_steps, progress.last or math.inf, progress.step + room()))

        def ended() -> str | None:
            if progress.last is not None and progress.step >= progress.last:
                return "converged"
            if progress.step >= outer_steps:
                return "steps"
            spent = budget.spent(progress.seconds, progress.all_calls, method.calls_per_step)
            if spent or room() == 0:
                return "budget"
            return "interrupted" if stop() else None

        compiled, timed = False, 0 if progress.pace is None else LATEST
        while progress.due is not None or (why := ended()) is None:
            if progress.due is None:
                progress = replace(progress, end=end())
                if method.plan is not None:
                    state = method.plan(state, progress.end)
                clock = Overtime(
                    energy, stop, progress.seconds, budget.seconds, method.calls_per_step
                )
                try:
                    with energy.stopping(clock.over):
                        key = jax.random.fold_in(key_step, progress.step)
                        state, told = _step(method, key, state, progress)
                except (Diverged, UserError):  # of the energy: what is there is not lost
                    save()
                    raise
                except GivenUp:
                    progress = replace(
                        progress,
                        seconds=progress.seconds + clock.seconds,
                        given_up_calls=progress.given_up_calls + clock.calls,
                    )
                    why = "interrupted" if stop() else "budget"
                    break
                pace = progress.pace
                if compiled:
                    timed = min(timed + 1, LATEST)
                    pace = clock.seconds if pace is None else pace + (clock.seconds - pace) / timed
                compiled = True
                calls = told.pop("energy_calls", method.calls_per_step)
                progress = replace(
                    progress,
                    step=progress.step + 1,
                    energy_calls=progress.energy_calls + calls,
                    seconds=progress.seconds + clock.seconds,
                    due=told,
                    pace=pace,
                )
            metrics = {"step": progress.step, "energy_calls": progress.energy_calls, **progress.due}
            looked, often = False, looks().every
            if often and (progress.step % often == 0 or progress.step >= end()):
                save(after=checkpoint_seconds)
                begun = energy.points
                try:
                    with energy.stopping(stop):
                        key = jax.random.fold_in(key_evaluate, progress.step)
                        values, calls = evaluate(key, state)
                except UserError:
                    save()
                    raise
                except GivenUp:
                    given_up = progress.given_up_calls + energy.points - begun
                    progress, why = replace(progress, given_up_calls=given_up), "interrupted"
                    break
                metrics["evaluation"] = values
                progress = replace(
                    progress,
                    evaluation_calls=progress.evaluation_calls + calls,
                    look_calls=max(progress.look_calls, calls),
                )
                if "validation" in values:
                    watch, looked = progress.watch.look(values["validation"]), True
                    progress = replace(progress, watch=watch)
            if progress.last is None and progress.watch.converged(stopping):
                # a rate that falls is given the time to
                more = 0 if method.plan is None else math.ceil(FALL * progress.step)
                progress = replace(progress, last=progress.step + more)
            progress = replace(progress, due=None)
            # once there have been looks, nothing is known of a state that had none
            if (looked or not progress.watch.recent) and progress.watch.good:
                kept, progress = state, replace(progress, kept=progress.step)
            if keeper:
                keeper.append(metrics, {"step": progress.step, "seconds": progress.seconds})
            observe(progress, metrics)
            save(after=checkpoint_seconds)
        save(why)
        return Trained(state, kept, progress, why)


def _begin(method: Method, key: PRNGKeyArray, clock: Overtime) -> tuple[Any, float]:
    """The first state, and the seconds of the budget that went by until it was there."""
    try:
        with clock.energy.stopping(clock.over):
            state = jax.block_until_ready(method.init(key))
    except GivenUp:
        if clock.stop():
            raise KeyboardInterrupt from None
        raise UserError(
            f"budget: the {clock.budget:.3g} s were over before the method had begun, after "
            f"{clock.calls} energy calls of its beginning; give it a larger budget"
        ) from None
    return state, clock.before + clock.seconds


def _step(
    method: Method, key: PRNGKeyArray, state: Any, progress: Progress
) -> tuple[Any, dict[str, float | int]]:
    """The state after one more step, and what the step told."""
    new, info = method.step(key, state)
    told = {k: v.item() for k, v in info._asdict().items() if v is not None}
    skipped = told.get("skipped", 0.0)
    if not math.isfinite(told.get("loss", 0.0)) or skipped > 0.5:
        raise Diverged(
            f"training diverged in outer loop {progress.step + 1}: {100 * skipped:.0f} % of the "
            f"updates were not finite ({told.get('bad', 0)} bad energies). The state of loop "
            f"{progress.kept} is kept. Try a lower learning_rate and a tighter clip of "
            "the score: of idem and pdem clip.max_norm=100, or a larger noise.sigma_min; of pis, "
            "dds and dis sampler.loss=log_huber, with a smaller sampler.score_clip."
        )
    return new, told
