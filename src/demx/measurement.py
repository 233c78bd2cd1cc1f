"""What is measured of an energy before training: once a run, and within its budget."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax

from demx.energy import evaluate
from demx.errors import GivenUp, UserError
from demx.pace import duration, watched
from demx.recipe import Probe, least_calls, probe
from demx.space import normal
from demx.targets.black_box import BlackBox
from demx.targets.first_look import warn_of_rounding
from demx.types import Target

BATCH = 1024  # points, of which a call is timed
WITHOUT = (
    "less to look at: a scale (--scale) is found by one look around instead of several, and chains "
    "that begin at known points (--method hmc --warm-start FILE) need none"
)
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


def measure(target: Target, scale: float | None, until: float, most: float, quiet: bool) -> Probe:
    """A probe that ends by `until`, of `time.perf_counter`, with `most` energy calls, or not at
    all."""
    calls, least = least_calls(scale), scale is None

    def over(calls: int) -> bool:
        if calls > most:
            raise UserError(
                f"budget: a probe of this energy takes {'at least ' * least}{calls:,} calls, and "
                f"{max(0.0, most):,.0f} are left; a larger budget is needed, or {WITHOUT}"
            )
        return time.perf_counter() >= until

    with in_time(target, "probe of the energy", until, calls, least=least, quiet=quiet):
        over(calls)
        seen = probe(target, scale, over)
    if isinstance(target, BlackBox):
        warn_of_rounding(target, seen.energy)
    return seen


def seconds_per_call(target: Target, scale: float) -> tuple[float, int]:
    """What an energy with its gradient takes, and the energy calls that finding out took.

    Of a black box that is known. Of what JAX compiles: the shorter of two runs of a batch of
    normal points as wide as `scale`, on one device.
    """
    if isinstance(target, BlackBox):
        return target.seconds_per_point, 0
    x = scale * normal(jax.random.key(0), target.space, (BATCH,))
    run = eqx.filter_jit(lambda target, x: evaluate(target, x))
    jax.block_until_ready(run(target, x))
    taken = []
    for _ in range(2):
        begun = time.perf_counter()
        jax.block_until_ready(run(target, x))
        taken.append(time.perf_counter() - begun)
    return min(taken) / BATCH, 3 * BATCH


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
            f"before anything was trained; a larger budget is needed, or {WITHOUT}"
        ) from None
