"""What a run may take, and how many outer loops that has room for."""

import math
from dataclasses import dataclass
from typing import Any

from demx.errors import UserError


@dataclass(frozen=True)
class Budget:
    """Stop when the training time or the energy calls are spent."""

    seconds: float = math.inf
    energy_calls: float = math.inf

    def spent(self, seconds: float, energy_calls: int, calls_per_step: int) -> bool:
        # a step that would go beyond the energy calls is not begun
        return energy_calls + calls_per_step > self.energy_calls or seconds >= self.seconds

    def room(
        self,
        seconds: float,
        energy_calls: int,
        calls_per_step: float,
        pace: float | None,
        grace: float | None = None,
    ) -> float:
        """Steps that what is left of it has room for, a whole number; ∞: no end is known.

        pace: seconds of a step, once it is known. grace: the share of the budget beyond which a
        step is given up; None: one that has begun is finished.
        """
        by_calls = by_time = math.inf
        if calls_per_step and math.isfinite(self.energy_calls):
            by_calls = (self.energy_calls - energy_calls) // calls_per_step
        if pace is not None and math.isfinite(self.seconds):
            if grace is None:
                by_time = math.ceil((self.seconds - seconds) / max(pace, 1e-9))
            else:
                by_time = ((1 + grace) * self.seconds - seconds) // max(pace, 1e-9)
        return max(0.0, min(by_calls, by_time))


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
