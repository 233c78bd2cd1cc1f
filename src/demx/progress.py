"""A line that shows how a run is doing."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from demx.budget import Budget
from demx.display import html_table
from demx.pace import EVERY, repeated, short
from demx.train import Progress


class ProgressLine:
    """Rate, loss, clip share, bad points, energy calls, time left: live on a terminal and in a
    notebook, one line every few seconds elsewhere.

    asked: the energy calls that a black box has counted so far. Its loops may be long: how far the
    one is that is under way is shown too, at least every ten seconds.
    """

    def __init__(
        self,
        outer_steps: int,
        budget: Budget,
        calls_per_step: int,
        console: Console,
        asked: Callable[[], int] | None = None,
    ):
        self.outer_steps, self.budget = outer_steps, budget
        self.calls_per_step, self.console = calls_per_step, console
        self.live = Live(console=console, refresh_per_second=4, transient=False)
        self.bad = self.unusable = self.restarted = 0
        self.first: Progress | None = None
        self.last_print = 0.0
        self.cells: dict[str, str] = {"": "no step was made"}
        self.latest = ""
        self.evaluation: dict[str, str] = {}
        self.history: list[dict[str, Any]] = []
        self.asked, self.beats = asked, contextlib.ExitStack()
        self.begun, self.since = asked() if asked else 0, time.monotonic()
        self.notebook = _Notebook() if console.is_jupyter and not console.quiet else None

    def __enter__(self) -> "ProgressLine":
        if self.notebook:
            self.notebook.update({"": "compiling, and the first loop …"})
        elif self.console.is_terminal:
            self.live.start()
            self.live.update("compiling, and the first loop …")
        if self.asked is not None and not self.console.quiet:
            every = 1.0 if self.console.is_terminal or self.notebook else EVERY
            self.beats.enter_context(repeated(self._beat, every))
        return self

    def __exit__(self, *exception) -> None:
        self.beats.close()
        if self.notebook:
            self.notebook.update(self.cells)
        elif self.console.is_terminal:
            self.live.stop()
        elif self.latest:
            self._say(self.latest)

    def stopping(self) -> None:
        """Tell that a request to stop was heard."""
        what = "this loop" if self.asked is None else "the energy call under way"
        self._say(f"stopping after {what}; Ctrl-C once more stops at once")

    def _say(self, text: str) -> None:
        """One line, however long: a file has no width to break it at."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def _beat(self) -> None:
        """How far the loop under way is, by the calls it has made."""
        done, spent = self.asked() - self.begun, time.monotonic() - self.since
        if spent < 1.0 or not done:
            return
        said = f"{short(done)} energy calls"
        if done < self.calls_per_step:
            left = spent * (self.calls_per_step / done - 1)
            said = (
                f"{short(done)} of {short(self.calls_per_step)} energy calls, {_clock(left)} left"
            )
        elif self.calls_per_step:
            said = f"looking at the samples, {short(done - self.calls_per_step)} energy calls"
        if self.notebook or self.console.is_terminal:
            cells = (self.cells if self.history else {}) | {"this loop": said}
            self.notebook.update(cells) if self.notebook else self.live.update(_grid(cells))
        elif time.monotonic() - self.last_print > EVERY - 1:
            self.last_print = time.monotonic()
            number = len(self.history) and self.history[-1].get("step", 0)
            self._say(f"loop {number + 1}: {said}")

    def _left(self, progress: Progress) -> float:
        """Seconds to go, to the end that is foreseen or that of the time."""
        steps = self._end(progress) - progress.step
        by_steps = steps / max(self._rate(progress), 1e-9)
        return max(0.0, min(by_steps, self.budget.seconds - progress.seconds))

    def _end(self, progress: Progress) -> int:
        return max(progress.end, progress.step)

    def _rate(self, progress: Progress) -> float:
        """Outer loops a second, without the first one, which compiled."""
        first = self.first or progress
        done = progress.step - first.step
        if done == 0:
            return 1 / max(progress.seconds, 1e-9)
        return done / max(progress.seconds - first.seconds, 1e-9)

    def __call__(self, progress: Progress, metrics: dict[str, Any]) -> None:
        self.history.append({**metrics, "seconds": progress.seconds})
        if self.asked is not None:
            self.begun, self.since = self.asked(), time.monotonic()
        if self.first is None:
            self.first = progress
        self.bad += metrics.get("bad", 0)
        self.unusable += metrics.get("unusable", 0)
        self.restarted += metrics.get("restarted", 0)
        shown = {
            "loss": lambda v: f"{v:.4g}",
            "acceptance": lambda v: f"{v:.2f}",
            "traded": lambda v: f"{v:.2f}",
            "clipped": lambda v: f"{100 * v:.1f}%",
            "bad": lambda v: str(self.bad),
            "unusable": lambda v: str(self.unusable),
        }
        cells = {"loop": f"{progress.step}/{self._end(progress)}"}
        cells |= {name: say(metrics[name]) for name, say in shown.items() if name in metrics}
        if self.restarted:
            cells["restarted"] = str(self.restarted)
        cells |= {
            "calls": short(progress.all_calls),
            "loops/s": f"{self._rate(progress):.2f}",
            "time": _clock(progress.seconds),
            "left": _clock(self._left(progress)),
        }
        self.evaluation |= {k: f"{v:.4g}" for k, v in metrics.get("evaluation", {}).items()}
        cells |= self.evaluation
        self.cells = cells
        now = time.monotonic()
        if self.notebook:
            if now - self.last_print > 0.5:  # a kernel's messages are not free
                self.last_print = now
                self.notebook.update(cells)
            return
        if self.console.is_terminal:
            self.live.update(_grid(cells))
            return
        self.latest = "  ".join(f"{name} {value}" for name, value in cells.items())
        if now - self.last_print > 10:
            self.last_print = now
            self._say(self.latest)
            self.latest = ""


class _Notebook:
    """One output cell that is written again and again; needs nothing but IPython itself."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML(""), display_id=True)

    def update(self, cells: dict[str, str]) -> None:
        self._handle.update(self._html(html_table([[*cells], [*cells.values()]])))


def _grid(cells: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    names = list(cells)
    for start in range(0, len(names), 6):
        row = names[start : start + 6]
        table.add_row(*[f"[dim]{name}[/dim] {cells[name]}" for name in row])
    return table


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
