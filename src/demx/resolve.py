"""From what a user names or hands over to a target and a complete configuration."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from demx import config as configuration
from demx import source as sources
from demx.beginning import beginning, check_energies, identity, width
from demx.budget import Budget
from demx.errors import UserError
from demx.interruption import Inside, Stoppable
from demx.measurement import as_kept, in_time, kept, measure, seconds_per_call
from demx.pace import watched
from demx.recipe import FEWER_CHAINS, SLACK, SMALLER, affordable, fewer_chains, smaller
from demx.recipe import settings as settings_for
from demx.samples import Stored
from demx.source import Source
from demx.space import named, normal, space_of
from demx.targets.black_box import BlackBox
from demx.targets.first_look import first_look, near, warn_of_rounding
from demx.targets.function import CALLS, FunctionTarget, check_energy, check_shape
from demx.types import Target


class Opened(NamedTuple):
    """A target, what to call it, and the energy calls that a first look at it took.

    source: the file it comes from, if it is a name in one; where: the space that was named for it.
    """

    name: str
    target: Target
    energy_calls: int = 0
    source: Source | None = None
    where: dict[str, Any] = {}

    def head(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a configuration says of its target."""
        found = {"target": self.name} | ({"target_settings": dict(settings)} if settings else {})
        return found | ({"source": str(self.source), **self.where} if self.source else {})


def open_target(
    target: str | Target | Callable[[Array], Array],
    settings: Mapping[str, Any],
    *,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    scale: float | None = None,
    look: bool = True,
) -> Opened:
    """From a name, FILE.py:NAME, a Target, or an energy function and its space.

    look: also at values and gradients of an energy function or a black box, not only at its shape.
    """
    source = sources.parse(target) if isinstance(target, str) else None
    if source is not None:
        target = sources.load(source, settings)
    if (isinstance(target, str) or hasattr(target, "log_density")) and (
        dim is not None or particles is not None or species is not None
    ):
        raise UserError(
            "dim, particles (--dim, --shape): only for an energy function; this target has its "
            "space"
        )
    if isinstance(target, str):
        return Opened(target, configuration.build_target(target, settings))
    if hasattr(target, "log_density"):
        try:
            check_shape(target.log_density, target.space)
        except ValueError as error:
            raise UserError(f"target: its log_density is not usable; {error}") from error
        calls = _look_at(target, scale or 1.0) if look and isinstance(target, BlackBox) else 0
        return Opened(source.title if source else type(target).__name__, target, calls, source)
    if not callable(target):
        raise UserError(f"target: expected a name, a Target or a function, got {target!r}")
    try:
        space = space_of(dim, particles, species)
        (check_energy(target, space, scale or 1.0) if look else check_shape(target, space))
    except (TypeError, ValueError) as error:
        raise UserError(f"{source}: {error}" if source else str(error)) from error
    name = source.title if source else getattr(target, "__name__", "energy")
    calls = CALLS if look else 0
    return Opened(name, FunctionTarget(target, space), calls, source, named(space))


def _look_at(target: BlackBox, scale: float) -> int:
    """Energy calls of a first look, with those of making the target."""
    try:
        with watched(target, "first look at the energy"):
            return first_look(target, scale) + target.claim()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error


def named_target(
    target: str | Target | Callable[[Array], Array], settings: Mapping[str, Any], **options: Any
) -> tuple[str, Target]:
    """`open_target`: the name and the Target."""
    return open_target(target, settings, **options)[:2]


def resolve(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: int = 0,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    scale: float | None = None,
    recipe: bool = False,
    warm_start: ArrayLike | Stored | None = None,
    settings: Mapping[str, Any] | None = None,
    budget: Budget = Budget(),  # noqa: B008
    before: Mapping[str, Any] | None = None,
    quiet: bool = True,
) -> tuple[Target, dict[str, Any]]:
    """The target and the complete configuration that `fit` would use.

    recipe: settings from a probe of the energy (`demx.recipe`) even where there is a preset.
    warm_start: points to begin from; the configuration has their checksum. budget: what the recipe
    makes outer loops fit into, and what the probe must end within. before: the
    configuration of the run that is gone on with; what was measured then, `probe`, `probe_calls`
    and `loop_calls`, is not measured again. quiet: a probe of a black box that takes its time tells
    nothing meanwhile.
    """
    until = time.perf_counter() + budget.seconds
    settings = dict(settings or {})
    for section, values in settings.items():
        left_out = values is None and section in configuration.OPTIONAL
        if not (isinstance(values, Mapping) or left_out):
            raise UserError(
                f'settings: expected sections like {{"draws": {{"num_samples": 512}}}}, '
                f"got {section!r}: {values!r}"
            )
    entry = configuration.method_entry(method)
    about = settings.pop("target", {})
    if scale is not None and not scale > 0:
        raise UserError(f"scale: expected a positive number, got {scale}")
    opened = open_target(
        target, about, dim=dim, particles=particles, species=species, scale=scale,
        look=before is None,
    )  # fmt: skip
    built, calls = opened.target, opened.energy_calls
    shipped = isinstance(target, str) and opened.source is None
    preset = configuration.preset(method, opened.name) if shipped and not recipe else {}
    head = opened.head(about) | {"method": method, "seed": seed}
    if scale is not None:
        head["scale"] = scale
    points = beginning(method, built, warm_start)
    chains = points is not None and entry.warm_start == "chains"
    if points is not None:
        head["warm_start"] = identity(points)
    if not preset and chains and (known := scale or width(built, points)):
        preset = {"sampler": {"scale": known}}  # for the first step size: nothing to probe
    by_recipe, by_chains = not preset and entry.matching, entry.warm_start == "chains"
    if not preset:
        seen = kept(before)
        if seen is None:
            seen = measure(built, scale, until, budget.energy_calls - calls, quiet)
            calls += seen.energy_calls
        if before is None or "probe" in before:  # an older run does not name it
            head["probe"] = as_kept(seen)
        preset = (
            settings_for(built.space, seen)
            if entry.matching
            else {"sampler": {"scale": seen.spread}}
        )
    sections = configuration.resolve_sections(method, built.space, [preset, settings])
    if by_recipe or (by_chains and isinstance(built, BlackBox)):
        full, room = sections, (before or {}).get("loop_calls")
        if before is None:
            each = None
            if math.isinf(budget.energy_calls):  # else no clock is needed
                each, asked = seconds_per_call(built, seen.spread if by_recipe else 1.0)
                calls += asked
            room = affordable(budget.seconds, budget.energy_calls - calls, each or 1.0)
            if each and not isinstance(built, BlackBox):
                whole = configuration.build_method(method, built, full).calls_per_step
                room = None if whole <= SLACK * room else room
        if room is not None:
            sections = _affordable_sections(method, built, preset, settings, room)
        # what JAX compiles mostly has its full sizes, whatever the clock says
        if room is not None and (sections != full or isinstance(built, BlackBox)):
            head["loop_calls"] = room
    idle = [name for name in ("estimator", "draws") if settings.get(name) and "walk" in sections]
    if idle:
        raise UserError(
            f"{', '.join(idle)}: without effect, because here walks take the place of importance "
            "samples; leave the walks out too (walk=none), or do not set it"
        )
    if chains and before is None:
        with in_time(built, "look at the points to begin from", until, quiet=quiet):
            found = check_energies(built, points[: max(1, sections["sampler"]["num_chains"])])
        calls += len(found)
        if isinstance(built, BlackBox):
            warn_of_rounding(built, float(np.median(found)))
    if not shipped:
        head["fingerprint"] = _fingerprint(built, scale or 1.0)
        calls += FINGERPRINT
    calls = calls if before is None else before.get("probe_calls", calls)
    if calls:
        head["probe_calls"] = calls
    return built, {**head, **sections}


def _affordable_sections(
    method: str, target: Target, preset: Mapping, settings: Mapping, room: int
) -> dict[str, Any]:
    """With the largest sizes of which an outer loop takes at most `room` energy calls, or with the
    smallest; what a user set stays."""
    if configuration.method_entry(method).matching:
        sizes = ({}, *(smaller(dict(preset), size) for size in SMALLER))
    else:
        whole = configuration.resolve_sections(method, target.space, [preset])["sampler"]
        sizes = (fewer_chains(whole, *size) for size in FEWER_CHAINS)
    for layer in sizes:
        sections = configuration.resolve_sections(method, target.space, [preset, layer, settings])
        if configuration.build_method(method, target, sections).calls_per_step <= room:
            break
    return sections


def reopen(config: Mapping[str, Any], place: str | Path) -> Target:
    """The target of a run of FILE.py:NAME: the file is read again, and must hold the same energy.

    Costs FINGERPRINT energy calls.
    """
    source = sources.parse(config["source"])
    if not source.path.exists():
        raise UserError(
            f"{place}: its energy is in {source.path}, which is not there any more; put it back, "
            "or name its new place as `source` in config.toml"
        )
    where = {key: config[key] for key in ("dim", "particles", "species") if key in config}
    settings = config.get("target_settings", {})
    built = open_target(config["source"], settings, look=False, **where).target
    found, known = _fingerprint(built, config.get("scale", 1.0)), config["fingerprint"]
    same = (
        len(found) == len(known)
        and found[0] == known[0]
        and np.allclose(
            np.array(found[1:], float), np.array(known[1:], float), 2e-3, 0, equal_nan=True
        )
    )
    if not same:
        raise UserError(
            f"{place}: {source} is not the energy this run was trained on (its space and log-"
            f"density at three points: {', '.join(known[:4])}, now {', '.join(found[:4])}); "
            "restore it, or fit it in "
            "another directory"
        )
    return built


def reference_key(head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """By what name and settings the reference sets of a configuration's target are kept."""
    about = dict(head.get("target_settings", {}))
    if "source" not in head:
        return head["target"], about
    where = {key: head[key] for key in ("source", "dim", "particles", "species") if key in head}
    return sources.slug(head["source"]), about | where


FINGERPRINT = 8  # points, and energy calls


def opening_calls(config: Mapping[str, Any], target: Target) -> int:
    """What opening a run has cost."""
    made = target.claim() if isinstance(target, BlackBox) else 0
    return made + (FINGERPRINT if "source" in config else 0)


def _fingerprint(target: Target, scale: float) -> list[str]:
    """Shape and log-densities at fixed points: tells one energy from another of that name."""
    points = near(target, scale, normal(jax.random.key(8), target.space, (FINGERPRINT,)))
    energy = target if isinstance(target, Stoppable) else Inside()
    with energy.stopping(lambda: False):  # what a black box raises is told as what it is
        values = np.asarray(jax.jit(jax.vmap(target.log_density))(points))
    return [str(target.space.shape), *(f"{float(value):.4g}" for value in values)]


def rows(target: Target) -> str:
    return f"(n, {', '.join(map(str, target.space.shape))})"
