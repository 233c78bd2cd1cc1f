"""The shape of the project: imports go one way, files stay short, the README runs."""

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
    "fitted",
    "recipe",
    "resolve",
    "source",
    "samples",
    "machine",
    "bench",
    "glance",
    "comparison",
    "commands",
    "outputs",
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


def readme_block(language, index=0):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[index]


def test_the_readme_example_runs(monkeypatch, tmp_path):
    """The example as printed, with a budget of a few steps."""
    import demx
    from demx import api

    code = readme_block("python")
    assert len(code.strip().splitlines()) <= 15
    tiny = {
        "draws": {"num_samples": 8},
        "network": {"width": 8, "depth": 1},
        "training": {"outer_steps": 1, "inner_steps": 2, "batch_size": 8, "new_samples": 8},
        "grid": {"num_steps": 4},
    }
    real = api.fit

    def quick(target, **options):
        options["settings"] = {**tiny, **options.get("settings", {})}
        return real(target, **options, progress=False)

    monkeypatch.setattr(demx, "fit", quick, raising=False)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_commands_exist():
    from demx import cli

    commands = re.findall(r"^demx (\w+)", readme_block("sh", 1), re.M)
    assert {"fit", "sample", "evaluate", "report"} <= set(commands)
    for command in commands:
        assert hasattr(cli, "list_" if command == "list" else command)


def test_links_in_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if not link.startswith("http"):
                assert (document.parent / link).exists(), f"{document.name}: {link}"
