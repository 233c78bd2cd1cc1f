"""The shape of the project: imports go one way, files stay short, links lead somewhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "demx"
FILES = sorted(SOURCE.rglob("*.py"))
EDGE = {"config", "store", "train", "progress", "api", "cli", "report", "registry", "evaluate"}
EDGE |= {
    "assessment",
    "drawing",
    "fitted",
    "recipe",
    "resolve",
    "ruler",
    "source",
    "samples",
    "machine",
    "bench",
    "glance",
    "comparison",
    "beginning",
    "commands",
    "outputs",
    "pace",
    "interruption",
    "measurement",
    "trial",
}
NUMERICAL = [f for f in FILES if f.relative_to(SOURCE).parts[0].removesuffix(".py") not in EDGE]
FORBIDDEN = {"matplotlib", "rich", "tyro", "logging", "tomllib", "tomli_w", "pathlib", "json"}


def imported(path):
    """Names of all modules a file imports, whole: demx.report.html, numpy, …"""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", NUMERICAL, ids=lambda p: str(p.relative_to(SOURCE)))
def test_numerical_code_does_not_know_the_edge(path):
    if path.name in ("__main__.py", "__init__.py") and path.parent == SOURCE:
        return
    for name in imported(path):
        top, *rest = name.split(".")
        assert top not in FORBIDDEN, f"{path.name} imports {name}"
        assert not (top == "demx" and rest and rest[0] in EDGE), f"{path.name} imports {name}"


def test_only_figures_draws():
    drawing = [f.name for f in FILES if any(n.startswith("matplotlib") for n in imported(f))]
    assert drawing == ["figures.py"]


def test_files_stay_short():
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in FILES}
    assert max(lengths.values()) <= 330, max(lengths, key=lengths.get)


def test_links_in_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if not link.startswith("http"):
                assert (document.parent / link).exists(), f"{document.name}: {link}"
