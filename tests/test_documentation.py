"""What the documents say can be typed: Python runs, commands parse, help fits the screen."""

import ast
import contextlib
import functools
import json
import re
import shlex
from itertools import pairwise

import matplotlib
import pytest

import demx
import snippets
from demx import api, cli, resolve, ruler
from demx.config import parse_set
from demx.evaluate.observables import ANYWHERE, OF_PARTICLES
from demx.methods import METHODS
from demx.targets import TARGETS

DOCUMENTS = snippets.DOCUMENTS
WITH_PYTHON = [d for d in DOCUMENTS if snippets.python(d)]


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda d: d.stem)
def test_python_runs(document, monkeypatch, tmp_path):
    """In order, in one namespace, with settings of a few steps."""
    monkeypatch.setattr(demx, "fit", snippets.quick(api.fit), raising=False)
    made = snippets.quick_reference(ruler.reference)
    monkeypatch.setattr(demx, "reference", made, raising=False)
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context({"backend": "agg"}):
        snippets.run(document)


def test_few_are_skipped_and_each_says_why():
    skipped = {(d.name, s.line): s.skip for d in DOCUMENTS for s in snippets.python(d) if s.skip}
    assert len(skipped) <= 3
    assert all(len(why) > 10 for why in skipped.values())


def test_every_block_has_a_language():
    known = {"python", "sh", "text", "toml"}
    for document in DOCUMENTS:
        for one in snippets.snippets(document):
            assert one.language in known, f"{document.name}:{one.line}: {one.language!r}"


def judging():
    """The code that says something of samples, parsed."""
    package = snippets.ROOT / "src" / "demx"
    names = ("assessment.py", "fitted.py", "trial.py")
    for path in (*(package / name for name in names), *(package / "evaluate").glob("*.py")):
        yield ast.parse(path.read_text())


def in_words(node):
    """The words of a string, in pieces: None where it has a value."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [getattr(part, "value", None) for part in parts]
    # a string that is formatted later has its values at braces
    words = [re.split("({})", word) if isinstance(word, str) else ["{}"] for word in words]
    return [None if word == "{}" else word for split in words for word in split]


def letters(words):
    return sum(len(word) for word in words if word)


def as_pattern(words):
    return "".join(".+" if word is None else re.escape(word) for word in words)


def patterns():
    """What demx can say of samples: its f-strings, with anything where they have a value."""
    for tree in judging():
        for words in map(in_words, ast.walk(tree)):
            if letters(words) > 12:
                yield as_pattern(words)


def sentences():
    """What a verdict can say, whole: strings that end in a full stop and are no docstrings."""
    for tree in judging():
        nodes = [*ast.walk(tree)]
        inner = {part for node in nodes if isinstance(node, ast.JoinedStr | ast.Expr)
                 for part in ast.iter_child_nodes(node)}  # fmt: skip
        for node in nodes:
            words = in_words(node)
            whole = node not in inner and (words[-1] or "").endswith(".")
            if whole and letters(words) > 12:
                yield words


def printed_sentences():
    """In the `text` blocks of the documents and in the outputs of the notebook."""
    for document in DOCUMENTS:
        for one in snippets.snippets(document):
            if one.language == "text":
                yield from ((document.name, line) for line in one.code.splitlines())
    notebook = snippets.ROOT / "examples" / "tutorial.ipynb"
    for cell in json.loads(notebook.read_text())["cells"]:
        for output in cell.get("outputs", []):
            lines = output.get("text", output.get("data", {}).get("text/plain", []))
            yield from ((notebook.name, line) for line in lines)


def test_sentences_in_printed_output_are_still_said():
    """Numbers are those of some run; the words around them are the code's of today."""
    said = re.compile("|".join(f"(?:{one})" for one in {*patterns()}))
    found = [(name, line.strip()) for name, line in printed_sentences()]
    sentences = [(name, line) for name, line in found if re.fullmatch(r"[A-Z].* .*\.", line)]
    assert {name for name, _ in sentences} >= {"first-energy.md", "verdict.md", "tutorial.ipynb"}
    for name, line in sentences:
        assert said.fullmatch(line), f"{name}: {line}"


def explained():
    """The sentences that docs/verdict.md explains, up to where it cuts them short."""
    text = (snippets.ROOT / "docs" / "verdict.md").read_text().split("## The sentences")[1]
    return [
        " ".join(bold.split()).rstrip(" .…:;") for bold in re.findall(r"\*\*(.+?)\*\*", text, re.S)
    ]


def begins(words, entry):
    """Whether an entry, which has … for a value, is a sentence or its beginning."""
    one_by_one = [one for word in words for one in ([None] if word is None else word)]
    starts = (one_by_one[:i] for i in range(len(one_by_one)))
    return any(re.fullmatch(as_pattern(s), entry) for s in starts if letters(s) >= 12)


def test_every_sentence_of_a_verdict_is_explained():
    """And nothing is explained that is never said."""
    entries, said = explained(), [*sentences()]
    assert len(said) > 30 and "A chain never moved" in " ".join(words[0] or "" for words in said)
    missing = [words for words in said if not any(begins(words, entry) for entry in entries)]
    assert not missing
    idle = [entry for entry in entries if not any(begins(words, entry) for words in said)]
    assert not idle


def commands():
    for document in DOCUMENTS:
        for one in snippets.snippets(document):
            if one.language == "sh":
                lines = one.code.replace("\\\n", " ").splitlines()
                told = (shlex.split(line, comments=True) for line in lines)
                yield from ((document.name, line) for line in told if line)


CASES = [pytest.param(words, id=f"{document}: {' '.join(words)}") for document, words in commands()]


@pytest.mark.parametrize("words", CASES)
def test_commands_parse(words, monkeypatch):
    """As the command would, which ends the process if it refuses; then nothing is done."""
    program, *arguments = words
    root = snippets.ROOT
    if program == "demx":
        name, command = arguments[0], cli.COMMANDS[arguments[0]]
        called = []
        nothing = functools.wraps(command)(lambda *given, **options: called.append(options))
        monkeypatch.setitem(cli.COMMANDS, name, nothing)
        cli.call(arguments)
        assert called
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (root / "Makefile").read_text(), re.M)
    elif program == "python":
        if arguments[0] == "-c":
            compile(arguments[1], "-c", "exec")
        else:
            assert (root / arguments[0]).exists()
    else:
        assert program == "pip" and arguments[0] == "install"


# what a fit resolves without a probe of its energy
PRESET = {"gmm40", "dw4", "lj13", "lj55"}


def test_settings_in_commands_exist():
    for _, words in commands():
        if words[:2] == ["demx", "fit"] and words[2] in PRESET:
            given = dict(pairwise(words))
            changes = tuple(value for name, value in pairwise(words) if name == "--set")
            method = given.get("--method", "idem")
            resolve.resolve(words[2], method=method, settings=parse_set(changes))


def test_names_in_commands_exist():
    for document, words in commands():
        if words[0] == "demx" and words[1] in ("fit", "compare", "reference"):
            assert words[2] in TARGETS or ".py:" in words[2], f"{document}: {words}"
        if "--methods" in words:
            assert {*words[words.index("--methods") + 1].split(",")} <= {*METHODS}


def shown(capsys, *words):
    with contextlib.suppress(SystemExit):
        cli.call([*words, "--help"])
    return capsys.readouterr().out


def test_commands_in_the_text_have_these_options(capsys):
    """`demx sample --correct` in a sentence: no arguments to parse, but the names exist."""
    known = {name: shown(capsys, name) for name in cli.COMMANDS}
    for document in DOCUMENTS:
        text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
        for name, rest in re.findall(r"`demx (\w+)([^`]*)`", text):
            assert name in known, f"{document.name}: demx {name}"
            for option in re.findall(r"--[\w-]+", rest):
                assert option in known[name], f"{document.name}: demx {name} {option}"


def test_coordinates_by_name_are_in_the_help(capsys):
    help_ = shown(capsys, "report")
    for name in (*ANYWHERE, *OF_PARTICLES, "distance:0,1", "dihedral:i,j,k,l"):
        assert name in help_


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_fits_eighty_columns(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys, *filter(None, [name])).splitlines()
    assert len(lines) > 5
    for line in lines:
        assert len(line) <= 80, line
        assert "None" not in line  # a default in words, or no word at all
    # a line in a box that had room for the next word was broken by hand
    for line, following in pairwise(lines):
        if line.startswith("│  ") and following.startswith("│  "):
            text, word = line.strip("│ "), following.strip("│ ").split(" ")[0]
            room = 78 - len(line.rstrip("│ "))
            if text and word and word[0] not in "-•" and not text.endswith((".", ")", "]")):
                assert len(word) + 1 > room, f"{text!r} breaks before {word!r}"
