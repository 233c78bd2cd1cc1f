"""A target in a file of the user's, FILE.py:NAME.

NAME is an energy function of one configuration, a Target, or a function without required
arguments that returns a Target; the settings of the target are that function's arguments.
"""

import ast
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from demx import registry
from demx.errors import UserError

EXTRAS = {
    "ase": "ase", "arviz": "arviz", "h5netcdf": "arviz", "numpyro": "numpyro", "openmm": "openmm"
}  # fmt: skip


class Source(NamedTuple):
    """A name in a Python file, given by its absolute path."""

    path: Path
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def title(self) -> str:
        """What runs and tables call it."""
        return f"{self.path.stem}:{self.name}"


def parse(text: str) -> Source | None:
    """FILE.py:NAME; None if this is not the name of a file."""
    path, _, name = text.rpartition(":")
    if text.endswith(".py"):
        raise UserError(f"{text}: expected FILE.py:NAME, say {text}:energy; which name is meant?")
    if not path.endswith(".py"):
        return None
    if not name.isidentifier():
        raise UserError(f"{text}: expected FILE.py:NAME, got the name {name!r}")
    return Source(Path(path).expanduser().absolute(), name)


def slug(target: str) -> str:
    """A target as part of a directory's name."""
    source = parse(target)
    return target if source is None else f"{source.path.stem}-{source.name}"


def headlines(source: Source) -> list[str]:
    """First lines of the docstrings of the file and of the name, and the defaults of a function,
    where there are any. The file is not run."""
    try:
        tree = ast.parse(_text(source))
    except SyntaxError:
        return []  # said, with its line, by whoever runs the file
    kinds = ast.FunctionDef | ast.ClassDef
    named = [node for node in tree.body if isinstance(node, kinds) and node.name == source.name]
    found = []
    for title, node in ((source.path.name, tree), *((source.name, node) for node in named)):
        said = (ast.get_docstring(node) or "").strip()
        settings = _defaults(node) if isinstance(node, ast.FunctionDef) else ""
        if said or settings:
            found.append(": ".join([title + settings, *said.splitlines()[:1]]))
    return found


def _defaults(function: ast.FunctionDef) -> str:
    """'(x, stiffness=2.0)'; '' where no argument has a default."""
    given = function.args
    if not given.defaults and not any(given.kw_defaults):
        return ""
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    for argument in filter(None, every):
        argument.annotation = None
    return f"({ast.unparse(given)})"


def load(source: Source, settings: Mapping[str, Any]) -> Any:
    """An energy function or a Target: the file is run, as `python FILE.py` would but as a module.

    Modules beside it can be imported. settings: arguments for a function that makes the target.
    """
    found = getattr(_module(source), source.name)
    made = not _is_target(found) and callable(found) and not _required(found)
    if not made:
        if settings:
            raise UserError(
                f"target.{next(iter(settings))}: {source.title} has no settings; only a function "
                "without required arguments, which makes a target, has"
            )
        if not (_is_target(found) or callable(found)):
            raise UserError(f"{source}: expected an energy function or a Target, got {found!r}")
        return found
    known = registry.defaults(found)
    for name in settings:
        if name not in known:
            raise UserError(f"unknown setting 'target.{name}'; {registry.suggest(name, known)}")
    try:
        target = found(**settings)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(f"{source}: {_said(error, source)}") from error
    if not _is_target(target):
        raise UserError(
            f"{source}: a function without required arguments should return a Target (with `space` "
            f"and `log_density`), got {type(target).__name__}; an energy takes one configuration x"
        )
    return target


def _is_target(found: Any) -> bool:
    return hasattr(found, "log_density") and hasattr(found, "space") and not inspect.isclass(found)


def _required(found: Any) -> bool:
    """Whether a call needs arguments; functions without a signature, as of numpy, do."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return True
    wanted = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        p.kind is wanted[0] or (p.default is p.empty and p.kind not in wanted) for p in parameters
    )


def _text(source: Source) -> str:
    try:
        return source.path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{source.path}: expected a Python file that can be read, found none ({why}); "
            "FILE.py:NAME is looked for from the current directory"
        ) from error


def _module(source: Source) -> Any:
    """The file as a module; read anew each time, for it may have changed."""
    text, path = _text(source), str(source.path)
    spec = importlib.util.spec_from_loader(f"demx_source_{source.path.stem}", None, origin=path)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = path
    sys.modules[spec.name] = module  # dataclasses and pickles look themselves up
    if str(source.path.parent) not in sys.path:
        sys.path.insert(0, str(source.path.parent))
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{source.path}: {_said(error, source)}") from error
    if not hasattr(module, source.name):
        public = [name for name, value in vars(module).items() if _offered(name, value)]
        raise UserError(
            f"{source.path}: no {source.name!r} in it; {registry.suggest(source.name, public)}"
        )
    return module


def _offered(name: str, value: Any) -> bool:
    return not name.startswith("_") and (callable(value) or _is_target(value))


def _said(error: BaseException, source: Source) -> str:
    """An error of the user's code in one line, with its place in the file."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [step.lineno for step in steps if step.filename == str(source.path)]
    at = f" in line {lines[-1]}" if lines else ""
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error, ModuleNotFoundError):
        package, inside, _ = (error.name or "").partition(".")
        extra = EXTRAS.get(package)
        if inside:  # a package that is missing altogether is named alone
            first += f"; {package} is installed: is the name right?"
        elif extra:
            first += f"; pip install '.[{extra}]' in demx's directory"
        else:
            first += "; install it beside demx, or put its file beside this one"
    return f"{type(error).__name__}{at}: {first}"
