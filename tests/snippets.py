"""Fenced blocks of the documents: found, and run in order with settings of a few steps.

A comment that a reader does not see may stand above a Python block:

    <!-- test: before        and lines of Python that run first -->
    <!-- test: skip          and the reason -->

`python tests/snippets.py docs/first-energy.md` runs a page as it is printed, and writes what its
blocks print into the `text` blocks that follow them.
"""

import contextlib
import functools
import inspect
import io
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- test: (?P<order>before|skip)\s+(?P<note>[^>]*?)\s*-->\s*\n)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.S | re.M,
)


class Snippet(NamedTuple):
    """before: Python that runs first. skip: why it is not run."""

    language: str
    code: str
    line: int
    before: str = ""
    skip: str = ""


def snippets(document: Path) -> list[Snippet]:
    text = document.read_text()
    found = []
    for block in BLOCK.finditer(text):
        order = {block["order"]: block["note"]} if block["order"] else {}
        line = text.count("\n", 0, block.start("code")) + 1
        found.append(Snippet(block["language"], block["code"], line, **order))
    return found


def python(document: Path) -> list[Snippet]:
    return [one for one in snippets(document) if one.language == "python"]


MATCHING = {
    "draws": {"num_samples": 8},
    "training": {"outer_steps": 1, "inner_steps": 2, "batch_size": 8, "new_samples": 8},
    "grid": {"num_steps": 4},
    "evaluation": {"every": 0},
    "moves": None,
    "strays": None,
    "walk": None,
}
SAMPLER = {"outer_steps": 1, "num_chains": 4, "length": 4, "num_samples": 64, "num_rungs": 4,
           "num_pilot": 16, "num_leapfrog": 2}  # fmt: skip


def tiny(method: str) -> dict:
    """Settings of a few steps: what a method learns with them is nothing."""
    from demx import registry
    from demx.methods import METHODS

    entry = METHODS[method]
    if entry.settings is None:
        return {**MATCHING, "network": {"width": 8, "depth": 1}}
    fields = inspect.signature(registry.load(entry.settings)).parameters
    return {"sampler": {name: value for name, value in SAMPLER.items() if name in fields}}


class Later:
    """A sampler that is trained when it is first used: most snippets only make one."""

    def __init__(self, train):
        self._train = functools.cache(train)

    def __getattr__(self, name):
        return getattr(self._train(), name)

    def __repr__(self):
        return repr(self._train())


def quick(fit):
    """`demx.fit` with tiny settings: target and settings are checked at once, as by `fit`."""
    from demx import config, resolve
    from demx.budget import parse_budget

    def fitted(target, **options):
        settings = tiny(options.get("method", "idem"))
        options["settings"] = config.merge(settings, options.get("settings") or {}, settings)
        options = {"scale": 2.0, **options}
        inspect.signature(fit).bind(target, **options)
        known = inspect.signature(resolve.resolve).parameters
        given = {**options, "budget": parse_budget(options.get("budget"))}
        resolve.resolve(target, **{k: v for k, v in given.items() if k in known})
        return Later(lambda: fit(target, **options, progress=False))

    return fitted


def quick_reference(reference):
    """`demx.reference` of normal samples at once: chains would take minutes."""
    import numpy as np

    from demx.evaluate.reference import Reference

    def made(target, **options):
        inspect.signature(reference).bind(target, **options)
        shape = (options["n"], options["dim"])
        first, second = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
        about = {"sets": {}, "invariant": False}
        return Reference(first, second, about), None

    return made


def run(document: Path) -> None:
    """Every Python block of a document, in one namespace."""
    names: dict = {"__name__": document.stem}
    for one in python(document):
        if not one.skip:
            exec(compile(one.before, f"{document.name}, before line {one.line}", "exec"), names)
            padded = "\n" * (one.line - 1) + one.code  # so that errors name the line
            exec(compile(padded, str(document), "exec"), names)


def refresh(document: Path) -> None:
    """Run a page in full; what a block prints replaces the `text` block after it."""
    names: dict = {"__name__": document.stem}
    printed = ""

    def replaced(block: re.Match) -> str:
        nonlocal printed
        if block["language"] == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block["code"], str(document), "exec"), names)
            printed = out.getvalue()
        elif block["language"] == "text":
            return f"```text\n{printed}```"
        return block[0]

    document.write_text(BLOCK.sub(replaced, document.read_text()))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        refresh(Path(path))
