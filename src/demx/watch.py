"""Which state of a run to keep and when to stop: what looks at the validation set say.

A look gives one number v ≥ 0, smaller is better. Single looks are noisy, so the mean v̄ of the last
WINDOW ones is watched:

    keep a state while v̄ ≤ max(SLACK · min v̄, min v̄ + 4 sd(v) √(2/WINDOW)),
                 and v ≤ max(SLACK · min v̄, min v̄ + 4 sd(v) √(1 + 1/WINDOW))
    stop when min v̄ has not fallen by a share of PROGRESS for `patience` looks

Later is better, unless it is clearly worse; what became much worse shows before the mean does.
sd(v) is read from the differences of successive looks, by their median: a run that goes astray does
not widen it at once.
"""

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WINDOW = 3
MEMORY = 20  # looks that tell how noisy a look is
SLACK = 1.25
PROGRESS = 0.02
TO_DEVIATION = 1.4826 / 2**0.5  # from the median of |difference| of two normal numbers


@dataclass(frozen=True)
class Stopping:
    """patience: looks without progress after which training ends; 0: it goes on."""

    patience: int = 0

    def __post_init__(self) -> None:
        if self.patience < 0:
            raise ValueError(f"patience: expected at least 0, got {self.patience}")


@dataclass(frozen=True)
class Watch:
    """recent: the last looks. lowest: min v̄, `since` looks ago. good: keep states from here on."""

    recent: tuple[float, ...] = ()
    lowest: float | None = None
    since: int = 0
    good: bool = True

    def look(self, value: float) -> "Watch":
        """The watch after a look that gave `value`."""
        recent = (*self.recent, float(value))[-MEMORY:]
        if len(recent) < WINDOW:  # nothing to compare yet
            return Watch(recent)
        mean = sum(recent[-WINDOW:]) / WINDOW
        if self.lowest is None or mean < (1 - PROGRESS) * self.lowest:
            return Watch(recent, mean)
        noise = TO_DEVIATION * median(abs(b - a) for a, b in pairwise(recent))

        def within(v: float, variance: float) -> bool:
            return v <= max(SLACK * self.lowest, self.lowest + 4 * noise * variance**0.5)

        good = within(mean, 2 / WINDOW) and within(recent[-1], 1 + 1 / WINDOW)
        return Watch(recent, self.lowest, self.since + 1, good)

    def converged(self, stopping: Stopping) -> bool:
        return 0 < stopping.patience <= self.since
