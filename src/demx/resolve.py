"""From what a user names or hands over to a target and a complete configuration."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from demx import config as configuration
from demx.errors import UserError
from demx.recipe import probe
from demx.recipe import settings as settings_for
from demx.space import Euclidean, MeanFree, normal
from demx.targets.function import FunctionTarget, check_energy
from demx.types import Target


def named_target(
    target: str | Target | Callable[[Array], Array],
    settings: Mapping[str, Any],
    *,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    scale: float | None = None,
) -> tuple[str, Target]:
    """A name and a Target from a name, a Target, or an energy function and its space."""
    if not callable(target) and (dim is not None or particles is not None):
        raise UserError("dim, particles: only for an energy function; this target has its space")
    if isinstance(target, str):
        return target, configuration.build_target(target, settings)
    if hasattr(target, "log_density"):
        return type(target).__name__, target
    if callable(target):
        if (dim is None) == (particles is None):
            raise UserError(
                "an energy function needs one of dim=… and particles=(n, dimension), "
                f"got dim={dim}, particles={particles}"
            )
        try:
            space = Euclidean(dim) if dim is not None else MeanFree(*particles)
            check_energy(target, space, scale or 1.0)
        except (TypeError, ValueError) as error:
            raise UserError(str(error)) from error
        return getattr(target, "__name__", "energy"), FunctionTarget(target, space)
    raise UserError(f"target: expected a name, a Target or a function, got {target!r}")


def resolve(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: int = 0,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    scale: float | None = None,
    recipe: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Target, dict[str, Any]]:
    """The target and the complete configuration that `fit` would use.

    recipe: settings from a probe of the energy (`demx.recipe`) even where there is a preset.
    """
    settings = dict(settings or {})
    for section, values in settings.items():
        left_out = values is None and section in configuration.OPTIONAL
        if not (isinstance(values, Mapping) or left_out):
            raise UserError(
                f'settings: expected sections like {{"draws": {{"num_samples": 512}}}}, '
                f"got {section!r}: {values!r}"
            )
    configuration.method_entry(method)
    about = settings.pop("target", {})
    name, built = named_target(target, about, dim=dim, particles=particles, scale=scale)
    if scale is not None and not scale > 0:
        raise UserError(f"scale: expected a positive number, got {scale}")
    named = isinstance(target, str) and not recipe
    preset = configuration.preset(method, name) if named else {}
    head = {"target": name, "method": method, "seed": seed}
    if scale is not None:
        head["scale"] = scale
    if not preset:
        seen = probe(built, scale)
        head["probe_calls"] = seen.energy_calls
        matching = configuration.method_entry(method).matching
        preset = (
            settings_for(built.space, seen) if matching else {"sampler": {"scale": seen.spread}}
        )
    sections = configuration.resolve_sections(method, built.space, [preset, settings])
    if about:
        head["target_settings"] = about
    if not isinstance(target, str):
        head["fingerprint"] = _fingerprint(built, scale or 1.0)
    return built, {**head, **sections}


def _fingerprint(target: Target, scale: float) -> list[str]:
    """Shape and log-densities at eight fixed points: tells one energy from another of that name."""
    points = scale * normal(jax.random.key(8), target.space, (8,))
    values = jax.jit(jax.vmap(target.log_density))(points)
    return [str(target.space.shape), *(f"{float(value):.4g}" for value in values)]


def rows(target: Target) -> str:
    return f"(n, {', '.join(map(str, target.space.shape))})"


def check_warm_start(points: ArrayLike, target: Target) -> tuple[np.ndarray, list]:
    """The points as an array, and what identifies them in the configuration."""
    points = np.asarray(points, np.float32)
    if points.shape[1:] != target.space.shape or len(points) == 0:
        raise UserError(f"warm start: expected shape {rows(target)}, got {points.shape}")
    if not np.isfinite(points).all():
        raise UserError("warm start: expected finite numbers, found some that are not")
    return points, [list(points.shape), hashlib.sha256(points.tobytes()).hexdigest()]
