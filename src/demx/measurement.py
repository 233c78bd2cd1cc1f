"""What is measured of an energy before training: once a run, and within its budget."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from demx.errors import GivenUp, UserError
from demx.pace import duration, watched
from demx.recipe import Probe, least_calls, probe
from demx.targets.black_box import BlackBox
from demx.targets.first_look import warn_of_rounding
from demx.types import Target

KEPT = ("local_variance", "spread", "energy_calls")  # of a probe, in a configuration


def kept(before: Mapping[str, Any] | None) -> Probe | None:
    """What the run that is gone on with has found."""
    found = (before or {}).get("probe")
    if found is None:
        return None
    try:
        return Probe(*(found[name] for name in KEPT))
    except (KeyError, TypeError) as error:
        raise UserError(
            f"config.toml: expected probe with {', '.join(KEPT)}, got {found}"
        ) from error


def as_kept(seen: Probe) -> dict[str, Any]:
    """What a configuration says of a probe."""
    return {name: getattr(seen, name) for name in KEPT}


def measure(target: Target, scale: float | None, until: float, quiet: bool) -> Probe:
    """A probe that ends by `until`, of `time.perf_counter`, or not at all."""
    calls, least = least_calls(scale), scale is None
    with in_time(target, "probe of the energy", until, calls, least=least, quiet=quiet):
        seen = probe(target, scale, lambda: time.perf_counter() >= until)
    if isinstance(target, BlackBox):
        warn_of_rounding(target, seen.energy)
    return seen


@contextmanager
def in_time(
    target: Target, what: str, until: float, calls: float | None = None, **how: bool
) -> Iterator[None]:
    """`watched`, until the budget is over."""
    begun = time.perf_counter()
    try:
        with watched(target, what, calls, limit=until - begun, **how):
            yield
    except GivenUp:
        raise UserError(
            f"budget: it was over after {duration(time.perf_counter() - begun)} of the {what}, "
            "before anything was trained; a larger budget is needed, or less to look at: a scale "
            "(--scale) is found by one look around instead of several, and chains that begin at "
            "known points (--method hmc --warm-start FILE) need none"
        ) from None
