"""Printed numbers, and lines of progress in a file and in a notebook."""

import io
import sys
import types

import pytest
from rich.console import Console

from demx.budget import Budget
from demx.display import with_error
from demx.progress import ProgressLine
from demx.train import Progress


@pytest.mark.parametrize("value, error, wanted", [
    (4.531, 0.08, "4.53 ± 0.08"), (1.0, 4e-17, "1"), (-326.41235, 2e-5, "-326.4"),
    (-326.41235, 4e-5, "-326.41235 ± 0.00004"), (0.0, 1e-9, "0.0000000000 ± 0.0000000010"),
])  # fmt: skip
def test_what_rounding_makes_is_no_error(value, error, wanted):
    """Below the 10⁻⁷ of single precision; of 0 nothing is rounded."""
    assert with_error(value, error) == wanted


def test_a_line_of_progress_is_one_line_of_a_file():
    text = io.StringIO()
    console = Console(file=text, width=80)
    with ProgressLine(10**6, Budget(), 5, console, lambda: 5000) as line:
        metrics = {
            "loss": 2.5,
            "clipped": 0.125,
            "bad": 3,
            "evaluation": dict.fromkeys("abcdef", 1),
        }
        line(Progress(step=10**5, energy_calls=10**9, seconds=1e5), metrics)
    (said,) = text.getvalue().splitlines()
    assert len(said) > 80 and said.startswith("loop 100000/") and said.endswith("f 1")


def test_progress_in_a_notebook(monkeypatch):
    """One cell that is written again and again, with IPython alone."""
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what)

    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, lambda what, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    console = Console(force_jupyter=True)
    with ProgressLine(10, Budget(), 5, console) as line:
        line(Progress(step=1, energy_calls=5, seconds=1.0), {"loss": 2.5})
        line(Progress(step=2, energy_calls=10, seconds=2.0), {"loss": 1.5})
    assert "compiling" in shown[0] and "<td>1.5</td>" in shown[-1]
    assert [entry["loss"] for entry in line.history] == [2.5, 1.5]
