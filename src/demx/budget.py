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
        self, seconds: float, energy_calls: int, calls_per_step: int, pace: float | None
    ) -> int | None:
        """Steps that what is left of it has room for; None: endlessly many, or not known yet.

        pace: seconds of a step, once one has shown it.
        """
        by_calls = math.inf
        if calls_per_step and math.isfinite(self.energy_calls):
            by_calls = (self.energy_calls - energy_calls) // calls_per_step
        by_time = math.inf
        if math.isfinite(self.seconds):
            if pace is None:
                return None
            # a step that has begun is finished
            by_time = math.ceil((self.seconds - seconds) / max(pace, 1e-9))
        steps = min(by_calls, by_time)
        return None if math.isinf(steps) else max(0, int(steps))


@dataclass(frozen=True)
class Plan:
    """Outer loops after which a run is to end, by what was known of its budget."""

    steps: int
    budget: Budget

    @classmethod
    def of(cls, header: dict[str, Any]) -> "Plan":
        return cls(header["steps"], Budget(**header["budget"]))


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
