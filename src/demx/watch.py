"""Which state of a run to keep and when to stop: what looks at the validation set say.

A look gives one number v ≥ 0, smaller is better. Single looks are noisy, so the mean v̄ of the last
WINDOW ones is watched:

    keep a state while v̄ ≤ SLACK · min v̄      (later is better, unless it is clearly worse)
    stop when min v̄ has not fallen by a share of PROGRESS for `patience` looks
"""

from dataclasses import dataclass

WINDOW = 3
SLACK = 1.25
PROGRESS = 0.02


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
        recent = (*self.recent, float(value))[-WINDOW:]
        if len(recent) < WINDOW:  # nothing to compare yet
            return Watch(recent)
        mean = sum(recent) / WINDOW
        if self.lowest is None or mean < (1 - PROGRESS) * self.lowest:
            return Watch(recent, mean)
        return Watch(recent, self.lowest, self.since + 1, mean <= SLACK * self.lowest)

    def converged(self, stopping: Stopping) -> bool:
        return 0 < stopping.patience <= self.since
