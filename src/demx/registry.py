"""Names to factories: a factory's parameters are its settings, checked and completed here."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

from demx.errors import UserError

_GIVEN = ("space", "key", "target")  # parameters that the program, not the user, provides


def load(entry: str | Callable) -> Callable:
    """A factory, from itself or from 'module:name' (imported only now)."""
    if not isinstance(entry, str):
        return entry
    module, name = entry.split(":")
    return getattr(importlib.import_module(module), name)


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …? ' when something is close, then all that is known."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + "known: " + ", ".join(known)


def find(kind: str, name: str, entries: Mapping[str, Any]) -> Callable:
    """The factory of that name, or an error that lists the names."""
    if name not in entries:
        raise UserError(f"unknown {kind} {name!r}; {suggest(name, entries)}")
    return load(entries[name])


def defaults(factory: Callable) -> dict[str, Any]:
    """Settings and their defaults; `inspect.Parameter.empty` where there is none."""
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in _GIVEN}


def complete(where: str, factory: Callable, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a factory: those given, checked by name and type, and the defaults."""
    known = defaults(factory)
    for name in given:
        if name not in known:
            raise UserError(f"unknown setting '{where}.{name}'; {suggest(name, known)}")
    annotations = {p.name: p.annotation for p in inspect.signature(factory).parameters.values()}
    settings = {}
    for name, default in known.items():
        value = given.get(name, default)
        if value is inspect.Parameter.empty:
            raise UserError(
                f"missing setting '{where}.{name}' ({_say(annotations[name])}): "
                f"add --set {where}.{name}=…"
            )
        settings[name] = _typed(f"{where}.{name}", value, annotations[name])
    return settings


def build(where: str, factory: Callable, settings: Mapping[str, Any], *given: Any) -> Any:
    """Call the factory; what it refuses becomes an error that names the section."""
    try:
        return factory(*given, **settings)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _say(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """The value as its annotation has it (an integer will do for a float), or an error."""
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(annotation) in (list, tuple):
        inner = get_args(annotation)[0]
        if isinstance(value, list | tuple):
            return tuple(_typed(name, item, inner) for item in value)
    elif isinstance(value, annotation) and not (annotation is int and isinstance(value, bool)):
        return value
    raise UserError(f"{name}: expected {_say(annotation)}, got {value!r}")
