"""demx in Python: fit a target, get an object that samples."""

import math
import os
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
from demx.space import Euclidean, MeanFree
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


class Fitted:
    """A trained sampler: `sample`, `log_prob`, `log_z`, `evaluate`.

    config: the resolved configuration. progress: steps, seconds and energy calls spent.
    """

    def __init__(
        self, target: Target, method: Method, state: Any, config: dict, progress: Progress
    ):
        self.target, self.method, self.state = target, method, state
        self.config, self.progress = config, progress

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
        if n < 1:
            raise UserError(f"n: expected at least 1, got {n}")
        key = jax.random.key(seed)
        if not weights:
            return self.method.sample(key, self.state, n)
        if self.method.sample_weighted is None:
            raise UserError(f"method {self.config['method']} does not know its own density")
        return self.method.sample_weighted(key, self.state, n)

    def log_prob(self, x: ArrayLike) -> Float[Array, " n"]:
        """The sampler's own log-density at n points (on the mean-free subspace for particles)."""
        if self.method.log_prob is None:
            raise UserError(f"method {self.config['method']} does not know its own density")
        x = jnp.asarray(x, float)
        if x.shape[1:] != self.target.space.shape:
            raise UserError(f"x: expected shape (n, *{self.target.space.shape}), got {x.shape}")
        return self.method.log_prob(self.state, x)

    def log_z(self, n: int = 1000, *, seed: int = 0) -> LogZ:
        """log Z ≈ log mean exp(-E(x_i))/q(x_i), x_i ~ q."""
        log_weight = np.asarray(self.sample(n, seed=seed, weights=True).log_weight, float)
        if not np.isfinite(log_weight).any():
            raise UserError("log_z: no sample has a finite weight; train longer")
        # a weight that is nan comes from an unfinished likelihood: it counts as 0, as -∞ does
        log_weight = np.where(np.isnan(log_weight), -np.inf, log_weight)
        largest = log_weight.max()
        w = np.exp(log_weight - largest)
        error = w.std(ddof=1) / w.mean() / math.sqrt(n)
        ess = w.sum() ** 2 / (n * (w**2).sum())
        return LogZ(float(largest + np.log(w.mean())), float(error), float(ess), n)

    def evaluate(self, n: int = 1000, *, repeats: int = 10, seed: int = 1) -> evaluation.Evaluation:
        """Metrics of n·repeats fresh samples, with standard errors and floors."""
        key_sample, key_reference = jax.random.split(jax.random.key(seed))
        x = np.asarray(self.method.sample(key_sample, self.state, n * repeats).x)
        return evaluation.evaluate(self.target, x, key_reference, repeats=repeats)


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
    about = settings.pop("target", {})
    if isinstance(target, str):
        name, built = target, configuration.build_target(target, about)
    elif hasattr(target, "log_density"):
        name, built = type(target).__name__, target
    elif callable(target):
        if (dim is None) == (particles is None):
            raise UserError("an energy function needs dim=… or particles=(n, dimension)")
        space = Euclidean(dim) if dim is not None else MeanFree(*particles)
        check_energy(target, space, scale)
        name, built = getattr(target, "__name__", "energy"), FunctionTarget(target, space)
    else:
        raise UserError(f"target: expected a name, a Target or a function, got {target!r}")
    preset = configuration.preset(method, name) if isinstance(target, str) else {}
    sections = configuration.resolve_sections(built.space, [preset, settings], scale)
    head = {"target": name, "method": method, "seed": seed, "scale": scale}
    return built, {**head, **({"target_settings": about} if about else {}), **sections}


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
    settings: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train a sampler on a target: a name, a Target, or an energy function of one configuration.

    budget: '10m', '90s' of training or '5e6calls'. directory: keep a run there, and go on from
    it when called again. dim / particles / scale: the space of an energy function and the rough
    width of its mass. warm_start: existing samples for the buffer. settings: sections that
    change the preset, e.g. {"draws": {"num_samples": 512}}.
    """
    built, config = resolve(
        target, method=method, seed=seed, dim=dim, particles=particles, scale=scale,
        settings=settings,
    )  # fmt: skip
    limit = parse_budget(budget)
    store = None if directory is None else Store(directory)
    if store:
        store.open(config)
    made = configuration.build_method(method, built, config, warm_start)
    outer_steps = config["training"]["outer_steps"]
    every, n = config["evaluation"]["every"], config["evaluation"]["n"]
    with ProgressLine(
        outer_steps, limit, made.calls_per_step, Console(stderr=True, quiet=not progress)
    ) as line:
        state, reached = train(
            made,
            seed=seed,
            outer_steps=outer_steps,
            budget=limit,
            keeper=store,
            evaluate=_glance(made, built, n),
            every=every,
            observe=line,
            checkpoint_seconds=float(os.environ.get("DEMX_CHECKPOINT_SECONDS", "15")),
        )
    return Fitted(built, made, state, config, reached)


def load(directory: str | Path) -> Fitted:
    """A run from its directory. For a run of an energy function call `fit` again."""
    store = Store(directory)
    config = store.config()
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
        finite = energies[np.isfinite(energies)]
        values = {"energy_median": float(np.median(finite))} if len(finite) else {}
        if len(finite) < n:
            values["bad_samples"] = float(n - len(finite))
        reference = evaluation.reference_samples(target, key_reference, n)
        if reference is not None and n <= 2000:
            values["w2"] = w2(x, reference)
        return values, samples.energy_calls + n

    return look
