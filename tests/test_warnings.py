"""What a user is warned of, and how it reads."""

import contextlib
import io

import pytest

import demx
from demx import cli
from test_train import settings


@pytest.mark.parametrize("loops, told", [(40, True), (6, False)])
def test_a_budget_for_a_few_loops_is_told(recwarn, loops, told):
    """Two of forty; but two of six are nearly what was asked for."""
    planned = settings(outer_steps=loops)
    fitted = demx.fit("gmm40", settings=planned, budget="300calls", progress=False)
    assert fitted.ended == "budget" and fitted.progress.step == 2
    done = "only 2 of 40 outer loops were done within the budget"
    assert any(done in str(w.message) for w in recwarn) == told


def test_a_warning_of_the_command_is_a_sentence():
    """No path of a source file and no line of code."""
    with contextlib.redirect_stderr(io.StringIO()) as heard:
        cli._warn("too few", UserWarning, "somewhere.py", 7)
        cli._warn("old", DeprecationWarning, "somewhere.py", 7)
    assert heard.getvalue().splitlines()[0] == "demx: warning: too few"
    assert "somewhere.py:7: DeprecationWarning: old" in heard.getvalue()
