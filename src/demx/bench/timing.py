"""Measurements in processes of their own, which take turns.

On a machine whose speed drifts, a ratio of two parts that were timed minutes apart is a ratio of
two moods. Processes that are compared are therefore all started first; then each of them does one
repetition, in rounds, and the others wait.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

# large blocks stay with the process instead of going back to the system after each use: several
# times faster for formulations with large arrays, so this is the fair comparison
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 35), "MALLOC_TRIM_THRESHOLD_": str(1 << 35)}
Report = Callable[[str], None]


class Measured(NamedTuple):
    """Median seconds over the repetitions, all of them, and the peak memory of the process."""

    seconds: float
    each: list[float]
    gigabytes: float


class NotMeasured(RuntimeError):
    """A process ended without a result: too little memory, most often."""


class Worker:
    """`python -m demx.bench.worker TASK`: a repetition for every line it is sent."""

    def __init__(self, task: dict[str, Any]):
        self.task = task
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by close()
        command = [sys.executable, "-m", "demx.bench.worker", json.dumps(task)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | ALLOCATOR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next line it prints: first that it is ready, then one for each repetition."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        what = (self.errors.read().strip().splitlines() or [f"exit code {code}"])[-1]
        raise NotMeasured(f"{self.task['part']} of {self.task['target']}: {what}")

    def repeat(self) -> dict[str, Any]:
        """Seconds of one repetition, and the peak memory so far."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why it ended
        return self.answer()

    def close(self) -> None:
        """No more repetitions."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def in_turn(
    repeats: int, tasks: dict[str, dict[str, Any]], report: Report
) -> dict[str, Measured | None]:
    """Every task timed in rounds; None for one that could not be, and why is reported."""
    workers: dict[str, Worker] = {}
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in tasks}
    lost = set()

    def ask(label: str, question: Callable[[Worker], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return question(workers[label])
        except NotMeasured as error:
            report(f"not measured: {error}")
            lost.add(label)
            return None

    try:
        for label, task in tasks.items():  # compiled one after the other
            workers[label] = Worker(task)
            ask(label, Worker.answer)
        for turn in range(repeats):
            # there and back, so that none always follows the same one
            for label in reversed(tasks) if turn % 2 else tasks:
                found = None if label in lost else ask(label, Worker.repeat)
                if found is not None:
                    answers[label].append(found)
    finally:
        for worker in workers.values():
            worker.close()
    return {label: None if label in lost else _measured(found) for label, found in answers.items()}


def _measured(answers: list[dict[str, Any]]) -> Measured:
    seconds = [answer["seconds"] for answer in answers]
    return Measured(statistics.median(seconds), seconds, answers[-1]["peak_gigabytes"])


def ratio(above: Measured | None, below: Measured | None) -> float | None:
    """Median over the rounds of how many times longer the one took."""
    if above is None or below is None:
        return None
    return statistics.median(a / b for a, b in zip(above.each, below.each, strict=True))
