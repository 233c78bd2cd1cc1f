"""A run's configuration: a preset, changed by the user, completed by defaults, written as TOML.

Every section names a kind out of a registry and that kind's settings:

    [noise]
    kind = "geometric"
    sigma_min = 0.4
    sigma_max = 80.0
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import tomli_w

from demx import registry
from demx.buffer import BUFFERS
from demx.draws import Draws
from demx.errors import UserError
from demx.estimator import ESTIMATORS
from demx.methods import METHODS, Entry
from demx.methods.diffusion import Pin
from demx.methods.idem import Parts
from demx.methods.moves import Moves
from demx.methods.strays import Strays
from demx.methods.training import Training
from demx.methods.walk import Walk
from demx.model import PRECONDITIONS
from demx.networks import NETWORKS
from demx.noise import NOISES
from demx.sde import RULES, Grid
from demx.space import MeanFree, Space
from demx.targets import TARGETS
from demx.types import Method, Target
from demx.watch import Stopping
from demx.wrappers import WRAPPERS, Clipped

KINDS: dict[str, Mapping[str, Any]] = {
    "noise": NOISES,
    "estimator": ESTIMATORS,
    "network": NETWORKS,
    "precondition": PRECONDITIONS,
    "buffer": BUFFERS,
    "rule": RULES,
}


def clip(*, max_norm: float = math.inf, max_sigmas: float = math.inf) -> dict[str, float]:
    """Shorten the vectors of the score estimates to at most min(max_norm, max_sigmas/σ)."""
    return {"max_norm": max_norm, "max_sigmas": max_sigmas}


def evaluation(*, every: int = 10, n: int = 1000) -> tuple[int, int]:
    """Look at the sampler every so many outer loops (0: never), on n samples."""
    if every < 0 or n < 2:
        raise ValueError(f"expected every >= 0 and n >= 2, got every={every}, n={n}")
    return every, n


SINGLE: dict[str, Callable] = {
    "draws": Draws,
    "grid": Grid,
    "training": Training,
    "evaluation": evaluation,
    "stopping": Stopping,
}
OPTIONAL: dict[str, Callable] = {
    "clip": clip, "pin": Pin, "moves": Moves, "strays": Strays, "walk": Walk
}  # fmt: skip
Config = dict[str, Any]


def method_entry(name: str) -> Entry:
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}; {registry.suggest(name, METHODS)}")
    return METHODS[name]


def preset(method: str, target: str) -> Config:
    """The shipped preset of a method on a target, or what all but matching share, or nothing."""
    files = resources.files("demx.presets")
    names = [f"{method}-{target}.toml"]
    if not method_entry(method).matching:
        names.append(f"any-{target}.toml")
    for file in (files / name for name in names):
        if file.is_file():
            return tomllib.loads(file.read_text())
    return {}


def generic(space: Space) -> Config:
    """What every target starts from, before its preset or recipe."""
    # a standard normal vector of d components is longer than √d + 3 once in ten thousand
    clip = {"max_sigmas": round(space.shape[-1] ** 0.5 + 3, 2)}
    return {
        "network": {"kind": "lean" if isinstance(space, MeanFree) else "mlp"},
        "clip": clip,
        "sampler": clip,
    }


COMMON: Config = {
    "estimator": {"kind": "log_sum_exp", "wrap": []},
    "draws": {"num_samples": 256},
    "buffer": {"kind": "ring"},
    "rule": {"kind": "midpoint"},
    "training": {"prior_fraction": 0.05},
    "grid": {},
    "evaluation": {},
    "stopping": {},
}


def merge(*layers: Mapping[str, Any]) -> Config:
    """Later layers win, key by key. A section that changes its kind starts anew; None ends one."""
    merged: Config = {}
    for layer in layers:
        for name, value in layer.items():
            old = merged.get(name)
            if isinstance(value, Mapping) and isinstance(old, Mapping):
                fresh = "kind" in value and value["kind"] != old.get("kind")
                merged[name] = dict(value) if fresh else {**old, **value}
            else:
                merged[name] = dict(value) if isinstance(value, Mapping) else value
    return merged


def parse_set(assignments: list[str] | tuple[str, ...]) -> Config:
    """['training.batch_size=64', …] to nested settings; values are written as in TOML."""
    layer: Config = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if section in OPTIONAL and not dot and text.strip() == "none":
            layer[section] = None
            continue
        if not (equals and dot and name):
            raise UserError(
                f"--set: expected section.name=value, or section=none to leave out one of "
                f"{', '.join(OPTIONAL)}; got {assignment!r}"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()  # a bare word is a string
        layer[section] = {**(layer.get(section) or {}), name: value}
    return layer


def resolve_sections(method: str, space: Space, layers: list[Config]) -> Config:
    """Every section complete: generic start, then the layers; unknown names stop."""
    entry = method_entry(method)
    kinds, single, optional = KINDS, SINGLE, OPTIONAL
    if not entry.matching:
        kinds = {"network": NETWORKS} if entry.network else {}
        single = {"sampler": registry.load(entry.settings)} | {
            name: SINGLE[name] for name in ("evaluation", "stopping")
        }
        optional = {}
    known = {*kinds, *single, *optional}
    given = merge(*layers)
    for name in given:
        if name not in known:
            raise UserError(
                f"unknown section {name!r} of method {method}; {registry.suggest(name, known)}"
            )
    start = {k: v for k, v in merge(COMMON, generic(space)).items() if k in known}
    if "sampler" in start:  # of those that clip an estimate
        own = registry.defaults(single["sampler"])
        start["sampler"] = {k: v for k, v in start["sampler"].items() if k in own}
    raw = merge(start, given)
    resolved: Config = {}
    for name, entries in kinds.items():
        chosen = dict(raw[name])
        kind = chosen.pop("kind")
        if not isinstance(kind, str):
            raise UserError(f"{name}.kind: expected a name, got {kind!r}")
        wrap = {"wrap": _wrappers(chosen.pop("wrap", []))} if name == "estimator" else {}
        factory = registry.find(name, kind, entries)
        resolved[name] = {"kind": kind, **wrap, **registry.complete(name, factory, chosen)}
    for name, factory in single.items():
        resolved[name] = registry.complete(name, factory, raw.get(name, {}))
    for name, factory in optional.items():
        if raw.get(name) is not None:
            resolved[name] = registry.complete(name, factory, raw[name])
    return resolved


def _wrappers(names: Any) -> list[str]:
    names = [names] if isinstance(names, str) else names
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f"estimator.wrap: expected a list of names, got {names!r}")
    for name in names:
        registry.find("estimator wrapper", name, WRAPPERS)
    return names


def build_target(name: str, settings: Mapping[str, Any]) -> Target:
    factory = registry.find("target", name, TARGETS)
    return registry.build("target", factory, registry.complete("target", factory, settings))


def build_method(name: str, target: Target, sections: Config, warm_start=None) -> Method:
    """The parts of each section, then the method made of them."""
    entry = method_entry(name)
    factory = registry.load(entry.factory)
    _check_complete(entry, sections)
    for section in ("evaluation", "stopping"):  # not the method's, but to be refused before it runs
        registry.build(section, SINGLE[section], sections[section])
    if entry.matching:
        parts = _parts(target, sections)._replace(warm_start=warm_start)
        built = registry.build("grid", factory, {}, target, parts)
    else:
        made = registry.build("sampler", registry.load(entry.settings), sections["sampler"])
        given = (_network(target, sections),) if entry.network else ()
        start = {} if warm_start is None else {"warm_start": warm_start}
        built = registry.build("sampler", factory, start, target, made, *given)
    # what looking at the energy cost before anything was trained
    return built._replace(calls_at_init=built.calls_at_init + sections.get("probe_calls", 0))


def _check_complete(entry: Entry, sections: Config) -> None:
    """A setting that a run does not name is not the default of today: it was trained without it."""
    factories = dict(SINGLE) | {k: OPTIONAL[k] for k in OPTIONAL if k in sections}
    if not entry.matching:
        factories = {name: SINGLE[name] for name in ("evaluation", "stopping")}
        factories["sampler"] = registry.load(entry.settings)
    kinds = KINDS if entry.matching else {"network": NETWORKS} if entry.network else {}
    missing = sorted({*factories, *kinds} - set(sections))
    for name in set(kinds) & set(sections):
        factories[name] = registry.find(name, sections[name].get("kind"), kinds[name])
    for name in sorted(set(factories) & set(sections)):
        absent = set(registry.defaults(factories[name])) - set(sections[name])
        missing += sorted(f"{name}.{setting}" for setting in absent)
    if missing:
        raise UserError(
            f"expected a complete configuration, but there is no {', '.join(missing)}: was it "
            "written by another version of demx? Open it with that version, or train anew in "
            "another directory"
        )


def _network(target: Target, sections: Config) -> Callable:
    """A function of a key."""
    settings = dict(sections["network"])
    factory = registry.find("network", settings.pop("kind"), NETWORKS)
    return lambda key: registry.build("network", factory, settings, target.space, key)


def _check_level(sections: Config) -> None:
    """Networks that read σ/σ_d from their level need a precondition that says it."""
    network = sections["network"]
    reads = network["kind"] == "relaxing" or network.get("softness", 0.0) > 0
    if reads and sections["precondition"]["kind"] == "plain":
        raise UserError(
            f"network: {network['kind']} takes its level for log(σ/σ_d)/2, which precondition "
            "plain does not give it; take precondition denoiser, or a network of kind egnn, or "
            "lean or directed with network.softness=0"
        )


def _parts(target: Target, sections: Config) -> Parts:
    _check_level(sections)
    parts = {"network": _network(target, sections)}
    for section, factory in (SINGLE | OPTIONAL).items():
        if section in sections and section not in ("evaluation", "stopping"):
            parts[section] = registry.build(section, factory, sections[section])
    for section, entries in KINDS.items():
        if section != "network":
            settings = {k: v for k, v in sections[section].items() if k not in ("kind", "wrap")}
            factory = registry.find(section, sections[section]["kind"], entries)
            parts[section] = registry.build(section, factory, settings)
    wrap, count = sections["estimator"]["wrap"], parts["draws"].num_samples
    if "richardson" in wrap and count % 4:
        # so that mirror images stay together in the halves of an antithetic block
        raise UserError(f"draws.num_samples: expected a multiple of 4 with richardson, got {count}")
    if wrap[:2] == ["richardson", "conditional"]:
        raise UserError(
            'estimator.wrap: expected ["conditional", "richardson"]: x_0 is kept in every half'
        )
    for name in wrap:
        parts["estimator"] = WRAPPERS[name](parts["estimator"])
    if "clip" in parts:
        parts["estimator"] = registry.build("clip", Clipped, parts.pop("clip"), parts["estimator"])
    return Parts(**parts)


def dumps(config: Config) -> str:
    return tomli_w.dumps(config)
