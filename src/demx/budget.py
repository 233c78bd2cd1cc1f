"""What a run may take, and how many outer loops that has room for."""

import bisect
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from demx.errors import UserError


class Looks(NamedTuple):
    """Looks at the samples of a run, after every so many steps and at its end, for `calls` each."""

    every: int = 0
    calls: int = 0

    def cost(self, step: int, more: int) -> int:
        """Energy calls of the looks of a run that is at `step` and ends after `more` steps."""
        if not (self.every and more):
            return 0
        end = step + more
        return self.calls * (-(-end // self.every) - step // self.every)


@dataclass(frozen=True)
class Budget:
    """Stop when the training time or the energy calls are spent."""

    seconds: float = math.inf
    energy_calls: float = math.inf

    def spent(self, seconds: float, energy_calls: int, calls_per_step: int) -> bool:
        # a step that would go beyond the energy calls is not begun
        return energy_calls + calls_per_step > self.energy_calls or seconds >= self.seconds

    def looks(self, looks: Looks, before: int, calls_per_step: int, outer_steps: int) -> Looks:
        """The same, or none, where they would cost more than half of the steps that there is room
        for after `before` calls."""
        if math.isinf(self.energy_calls) or not calls_per_step:
            return looks
        left = self.energy_calls - before
        with_looks, without = (
            min(outer_steps, _steps(left, calls_per_step, each, 0)) for each in (looks, Looks())
        )
        return Looks() if 2 * with_looks < without else looks

    def room(
        self,
        seconds: float,
        energy_calls: int,
        calls_per_step: int,
        pace: float | None,
        grace: float | None = None,
        looks: Looks = Looks(),  # noqa: B008
        step: int = 0,
    ) -> float:
        """Steps that what is left of it has room for, a whole number; ∞: no end is known.

        pace: seconds of a step, once it is known. grace: the share of the budget beyond which a
        step is given up; None: one that has begun is finished. looks: those of the steps to come,
        and of the end, are paid from the same energy calls; the run is at `step`.
        """
        by_calls = by_time = math.inf
        if calls_per_step and math.isfinite(self.energy_calls):
            by_calls = _steps(self.energy_calls - energy_calls, calls_per_step, looks, step)
        if pace is not None and math.isfinite(self.seconds):
            if grace is None:
                by_time = math.ceil((self.seconds - seconds) / max(pace, 1e-9))
            else:
                by_time = ((1 + grace) * self.seconds - seconds) // max(pace, 1e-9)
        return max(0.0, min(by_calls, by_time))


def _steps(left: float, calls_per_step: int, looks: Looks, step: int) -> int:
    """The most steps that, with their looks, take no more than the energy calls that are left."""
    most = int(max(0.0, min(left // calls_per_step, 2.0**53)))  # beyond is beyond anybody
    cost = lambda more: more * calls_per_step + looks.cost(step, more)  # noqa: E731
    return max(0, bisect.bisect_right(range(most + 1), left, key=cost) - 1)


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
