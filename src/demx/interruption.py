"""Stopping before something is done: when a user asks, or when time is up.

A compiled program cannot be stopped, unless its energy is a function on the host: that is asked
again and again, and can refuse.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, runtime_checkable

GRACE = 0.1  # of a budget: what a step that has begun may take beyond it
EARLY = threading.Event()  # Ctrl-C before anybody listened


@runtime_checkable
class Stoppable(Protocol):
    """An energy that a program can be stopped by; `demx.targets.black_box.BlackBox` is one.

    Within `stopping` a program that asks it once `over()` is true ends with GivenUp.
    """

    @property
    def points(self) -> int: ...
    def stopping(self, over: Callable[[], bool]) -> AbstractContextManager: ...


class Inside:
    """An energy inside compiled programs: what has begun is finished."""

    points = 0

    def stopping(self, over: Callable[[], bool]) -> AbstractContextManager:
        return nullcontext()


class Overtime:
    """Whether to give up what began after `before` seconds of a budget, and takes `most` energy
    calls.

    `over()`: the user asks, or time is up and the rest would take more than GRACE of the budget.
    """

    def __init__(
        self, energy: Stoppable, stop: Callable[[], bool], before: float, budget: float, most: float
    ):
        self.energy, self.stop, self.before, self.budget = energy, stop, before, budget
        self.most, self.begun, self.started = max(1, most), energy.points, time.perf_counter()
        self.reached = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def calls(self) -> int:
        return self.energy.points - self.begun

    def over(self) -> bool:
        now = self.seconds
        if self.before + now >= self.budget:
            whole = now * self.most / max(1, self.calls)
            self.reached = self.reached or self.before + whole > (1 + GRACE) * self.budget
        self.reached = self.reached or self.stop()
        return self.reached


@contextmanager
def heard_early() -> Iterator[None]:
    """Ctrl-C raises as ever, and is remembered: code that JAX calls back swallows what is raised.

    What listens later, `stop_requested`, stops at once then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number, frame):
        EARLY.set()
        raise KeyboardInterrupt

    EARLY.clear()
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        EARLY.clear()


@contextmanager
def stop_requested(
    acknowledge: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[], bool]]:
    """True after Ctrl-C or a request to terminate; a second Ctrl-C interrupts at once.

    True at once, also while the main thread waits for a compiled program. acknowledge: called then,
    from a thread of its own, so that the user knows that the request was heard.
    """
    flag = threading.Event()
    if EARLY.is_set():
        flag.set()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return
    asking = (signal.SIGINT, signal.SIGTERM)
    before = {s: signal.getsignal(s) for s in asking}

    def ask(number, frame):
        flag.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    # Python runs handlers between two steps of its main thread, which may be far away; the number
    # of the signal goes through a wakeup file at once
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def listen():
        heard = False
        while number := os.read(reading, 1):
            if number[0] in asking and not heard:
                heard = True
                flag.set()
                acknowledge()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    file_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for s in before:
        signal.signal(s, ask)
    try:
        yield flag.is_set
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
        signal.set_wakeup_fd(file_before)
        os.close(writing)
        listener.join()
        os.close(reading)
