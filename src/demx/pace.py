"""What energy calls on the host take: said before they are made, and shown while they are."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from demx.errors import GivenUp, UserError
from demx.interruption import stop_requested
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


def short_time(seconds: float) -> str:
    """0.0004 → 0.4 ms."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.095 else f"{seconds:.2g} s"


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
        f"{short_time(each)} a call"
    )


def _is_news(record: logging.LogRecord) -> bool:
    """JAX logs what a function on the host raises; ours are said where they are caught."""
    return not (record.exc_info and isinstance(record.exc_info[1], GivenUp | UserError))


logging.getLogger("jax._src.callback").addFilter(_is_news)


EVERY = 10.0  # seconds between signs of life
WORTH_SAYING = 1.0  # seconds that nobody needs to be told of


@contextmanager
def repeated(act: Callable[[], None], every: float) -> Iterator[None]:
    """Within, act() every so many seconds, from a thread of its own."""
    done = threading.Event()

    def beat():
        while not done.wait(every):
            act()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def watched(
    target: Target,
    what: str,
    calls: float | None = None,
    *,
    least: bool = False,
    quiet: bool = False,
    limit: float = math.inf,
) -> Iterator[None]:
    """Energy calls on the host, `calls` of them (or at least so many): told on stderr what they
    will take, and every ten seconds how far they are. Ctrl-C ends them at once, and so does the
    limit in seconds, with GivenUp.

    Of what JAX compiles nothing is said.
    """
    if not isinstance(target, BlackBox):
        yield
        return
    begun, started = target.points, time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"{what}: {text}", file=sys.stderr, flush=True)

    def beat() -> None:
        done = target.points - begun
        whole = f" of {short(calls)}" if calls and not least else ""
        spent = duration(time.perf_counter() - started)
        say(f"{short(done)}{whole} energy calls so far, in {spent}")

    if calls and calls * target.seconds_per_point >= WORTH_SAYING:
        say(cost(target, calls, least))
    with stop_requested() as stop, repeated(beat, EVERY):
        try:
            with target.stopping(lambda: stop() or time.perf_counter() - started >= limit):
                yield
        except GivenUp:
            if stop():
                raise KeyboardInterrupt from None
            raise
    if stop():
        raise KeyboardInterrupt
