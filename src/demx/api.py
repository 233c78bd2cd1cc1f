"""demx in Python: fit a target, get an object that samples."""

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from rich.console import Console

from demx import config as configuration
from demx.energy import energies as energies_of
from demx.errors import UserError
from demx.evaluate import evaluation
from demx.evaluate.metrics import w2
from demx.progress import ProgressLine
from demx.space import Euclidean, MeanFree, normal
from demx.store import Store
from demx.targets.function import FunctionTarget, check_energy
from demx.train import Progress, parse_budget, train
from demx.types import Method, Samples, Target


class LogZ(NamedTuple):
    """log ∫ exp(-E) by importance sampling, its error, and the effective share of the weights."""

    value: float
    standard_error: float
    ess: float
    n: int
    bad: int  # samples without a finite density or energy: their weight is 0


class Fitted:
    """A trained sampler: `sample`, `log_prob`, `log_z`, `evaluate`.

    config: the resolved configuration. progress: steps, seconds and energy calls spent.
    """

    def __init__(
        self,
        target: Target,
        method: Method,
        state: Any,
        config: dict,
        progress: Progress,
        interrupted: bool = False,
    ):
        self.target, self.method, self.state = target, method, state
        self.config, self.progress, self.interrupted = config, progress, interrupted

    def __repr__(self) -> str:
        p = self.progress
        return (
            f"Fitted({self.config['method']} on {self.config['target']}, {p.step} outer loops, "
            f"{p.energy_calls} energy calls, {p.seconds:.0f} s)"
        )

    def sample(self, n: int, *, seed: int = 0, weights: bool = False) -> Samples:
        """n independent samples of the reverse SDE.

        weights: draw from the probability-flow ODE instead, whose density is known, and return
        `log_prob` and importance weights `log_weight` (one energy call a sample).
        """
        if not isinstance(n, int) or n < 1:
            raise UserError(f"n: expected a whole number of at least 1, got {n}")
        key = _key(seed, "sample")
        if not weights:
            return self.method.sample(key, self.state, n)
        if self.method.sample_weighted is None:
            raise UserError(NO_DENSITY)
        return self.method.sample_weighted(key, self.state, n)

    def log_prob(self, x: ArrayLike) -> Float[Array, " n"]:
        """The sampler's own log-density at n points (on the mean-free subspace for particles)."""
        if self.method.log_prob is None:
            raise UserError(NO_DENSITY)
        x = jnp.asarray(x, float)
        if x.shape[1:] != self.target.space.shape:
            raise UserError(f"x: expected shape {_rows(self.target)}, got {x.shape}")
        return self.method.log_prob(self.state, x)

    def log_z(self, n: int = 1000, *, seed: int = 0) -> LogZ:
        """log Z ≈ log mean exp(-E(x_i))/q(x_i), x_i ~ q."""
        return log_z(self.sample(n, seed=seed, weights=True))

    def evaluate(self, n: int = 1000, *, repeats: int = 10, seed: int = 1) -> evaluation.Evaluation:
        """Metrics of n·repeats fresh samples, with standard errors and floors."""
        key_sample, key_reference = jax.random.split(_key(seed, "evaluate"))
        drawn = self.method.sample(key_sample, self.state, n * repeats)
        found = evaluation.evaluate(
            self.target, np.asarray(drawn.x), key_reference, repeats=repeats
        )
        return found._replace(energy_calls=found.energy_calls + drawn.energy_calls)


def log_z(drawn: Samples) -> LogZ:
    """log Z ≈ log mean w with its error and effective share, from weighted samples."""
    n = len(drawn.x)
    if drawn.bad > 0.05 * n:
        raise UserError(
            f"log_z: {drawn.bad} of {n} samples have no finite density or energy, so the "
            "estimate would be too low; train longer"
        )
    log_weight = np.asarray(drawn.log_weight, float)
    largest = log_weight.max()
    w = np.exp(log_weight - largest)
    error = w.std(ddof=1) / w.mean() / math.sqrt(n)
    ess = w.sum() ** 2 / (n * (w**2).sum())
    return LogZ(float(largest + np.log(w.mean())), float(error), float(ess), n, drawn.bad)


NO_DENSITY = "this sampler does not know its own density (a method without one, or a pinned score)"
# far from the small numbers that training folds into the same seed: the streams never meet
_DOMAINS = {"sample": 0x5A5A5A5A, "evaluate": 0x3C3C3C3C}


def _key(seed: int, domain: str):
    return jax.random.fold_in(jax.random.key(seed), _DOMAINS[domain])


def resolve(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: int = 0,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    scale: float = 1.0,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Target, dict[str, Any]]:
    """The target and the complete configuration that `fit` would use."""
    settings = dict(settings or {})
    for section, values in settings.items():
        if not isinstance(values, Mapping):
            raise UserError(
                f'settings: expected sections like {{"draws": {{"num_samples": 512}}}}, '
                f"got {section!r}: {values!r}"
            )
    about = settings.pop("target", {})
    if not callable(target) and (dim is not None or particles is not None):
        raise UserError("dim, particles: only for an energy function; this target has its space")
    if isinstance(target, str):
        name, built = target, configuration.build_target(target, about)
    elif hasattr(target, "log_density"):
        name, built = type(target).__name__, target
    elif callable(target):
        if (dim is None) == (particles is None):
            raise UserError(
                "an energy function needs one of dim=… and particles=(n, dimension), "
                f"got dim={dim}, particles={particles}"
            )
        try:
            space = Euclidean(dim) if dim is not None else MeanFree(*particles)
            check_energy(target, space, scale)
        except (TypeError, ValueError) as error:
            raise UserError(str(error)) from error
        name, built = getattr(target, "__name__", "energy"), FunctionTarget(target, space)
    else:
        raise UserError(f"target: expected a name, a Target or a function, got {target!r}")
    preset = configuration.preset(method, name) if isinstance(target, str) else {}
    sections = configuration.resolve_sections(built.space, [preset, settings], scale)
    head = {"target": name, "method": method, "seed": seed, "scale": scale}
    if about:
        head["target_settings"] = about
    if not isinstance(target, str):
        head["fingerprint"] = _fingerprint(built, scale)
    return built, {**head, **sections}


def _fingerprint(target: Target, scale: float) -> list[str]:
    """Shape and log-densities at eight fixed points: tells one energy from another of that name."""
    points = scale * normal(jax.random.key(8), target.space, (8,))
    values = jax.jit(jax.vmap(target.log_density))(points)
    return [str(target.space.shape), *(f"{float(value):.4g}" for value in values)]


def _rows(target: Target) -> str:
    return f"(n, {', '.join(map(str, target.space.shape))})"


def _check_warm_start(points: ArrayLike, target: Target) -> tuple[np.ndarray, list]:
    """The points as an array, and what identifies them in the configuration."""
    points = np.asarray(points, np.float32)
    if points.shape[1:] != target.space.shape or len(points) == 0:
        raise UserError(f"warm start: expected shape {_rows(target)}, got {points.shape}")
    if not np.isfinite(points).all():
        raise UserError("warm start: expected finite numbers, found some that are not")
    return points, [list(points.shape), hashlib.sha256(points.tobytes()).hexdigest()]


def fit(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: int = 0,
    budget: str | None = None,
    directory: str | Path | None = None,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    scale: float = 1.0,
    warm_start: ArrayLike | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 15.0,
    settings: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train a sampler on a target: a name, a Target, or an energy function of one configuration.

    budget: '10m', '90s' of training or '5e6calls'. directory: keep a run there, and go on from
    it when called again. dim / particles / scale: the space of an energy function and the rough
    width of its mass. warm_start: existing samples for the buffer. checkpoint_seconds: how much
    work a kill may cost; the result is the same whatever it is. settings: sections that
    change the preset, e.g. {"draws": {"num_samples": 512}}.
    """
    built, config = resolve(
        target, method=method, seed=seed, dim=dim, particles=particles, scale=scale,
        settings=settings,
    )  # fmt: skip
    limit = parse_budget(budget)
    if warm_start is not None:
        warm_start, config["warm_start"] = _check_warm_start(warm_start, built)
    made = configuration.build_method(method, built, config, warm_start)
    # everything a user can get wrong is refused before the directory is touched
    jax.eval_shape(made.init, jax.random.key(seed))
    outer_steps = config["training"]["outer_steps"]
    every, n = config["evaluation"]["every"], config["evaluation"]["n"]
    store = None if directory is None else Store(directory)
    console = Console(stderr=True, quiet=not progress)
    with contextlib.ExitStack() as stack:
        if store:
            stack.enter_context(store.lock())
            store.open(config)
        line = stack.enter_context(ProgressLine(outer_steps, limit, made.calls_per_step, console))
        state, reached, interrupted = train(
            made,
            seed=seed,
            outer_steps=outer_steps,
            budget=limit,
            keeper=store,
            evaluate=_glance(made, built, n),
            every=every,
            observe=line,
            checkpoint_seconds=checkpoint_seconds,
        )
    if line.bad:
        warnings.warn(
            f"{line.bad} energies or new samples were not finite while training, and "
            f"{line.unusable} regression points could not be used: the energy is not finite where "
            "the sampler goes",
            stacklevel=2,
        )
    return Fitted(built, made, state, config, reached, interrupted)


def load(directory: str | Path) -> Fitted:
    """A run from its directory. For a run of an energy function call `fit` again."""
    store = Store(directory)
    config = store.config()
    if "fingerprint" in config:
        raise UserError(
            f"{directory}: a run of an energy given in Python ({config['target']}), which is not "
            "stored; call demx.fit with the same energy and directory"
        )
    for name in ("target", "method"):
        if name not in config:
            raise UserError(f"{store.config_file}: expected an entry {name!r}, found none")
    target = configuration.build_target(config["target"], config.get("target_settings", {}))
    method = configuration.build_method(config["method"], target, config)
    found = store.load(method.init(jax.random.key(0)))
    if found is None:
        raise UserError(f"{directory}: no checkpoint yet; run demx fit first")
    state, header = found
    return Fitted(target, method, state, config, Progress(**header))


def _glance(method: Method, target: Target, n: int):
    """The periodic look at a run: median energy, and W2 where exact samples can be had."""

    measure = jax.jit(lambda xs: energies_of(target, xs))

    def look(key, state) -> tuple[dict[str, float], int]:
        key_sample, key_reference = jax.random.split(key)
        samples = method.sample(key_sample, state, n)
        x = np.asarray(samples.x)
        energies = np.asarray(measure(x))
        good = evaluation.finite_rows(x, energies)
        x, energies = x[good], energies[good]
        values = {"bad_samples": int(n - len(x))} if len(x) < n else {}
        if len(x) == 0:
            return values, samples.energy_calls + n
        values["energy_median"] = float(np.median(energies))
        reference = evaluation.reference_samples(target, key_reference, len(x))
        if reference is not None and len(x) <= 2000:
            values["w2"] = w2(x, reference)
        return values, samples.energy_calls + n

    return look
