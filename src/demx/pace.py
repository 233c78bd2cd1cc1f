"""What energy calls on the host will take: said before they are made."""

from demx.targets.black_box import BlackBox
from demx.types import Target


def short(value: float) -> str:
    """1234567 → 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """In the unit that a person would take."""
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if (count := seconds / length) >= 2:
            return f"{count:.0f} {unit}" if count >= 10 else f"{count:.2g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def cost(target: Target, calls: float, least: bool = False) -> str | None:
    """'1.8M energy calls, about 12 minutes at 0.4 ms a call'; None of what JAX compiles.

    least: there may be more of them.
    """
    if not isinstance(target, BlackBox):
        return None
    each = target.seconds_per_point
    at_least = "at least " * least
    return (
        f"{at_least}{short(calls)} energy calls, about {duration(calls * each)} at "
        f"{1000 * each:.2g} ms a call"
    )
