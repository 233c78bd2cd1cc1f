"""How honest are the standard errors of log Z? AIS, SMC and nested sampling, many seeds.

    python benchmarks/evidence.py --seeds 20
    python benchmarks/evidence.py --seeds 200 --targets mixture --methods ais

On a correlated Gaussian in 10 dimensions and a mixture of 3 unequal modes, both of known log Z.
Each seed tunes and samples anew (n = 2048); printed is how many of the seeds lie within two of
their own standard errors. With dynesty installed and `nested` among the methods its log Z, from a
uniform prior, stands beside that of our nested sampling.
"""

import argparse
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

from demx.classical.annealed import Annealed, Smc, ais, smc
from demx.classical.nested import Nested, nested
from demx.evaluate.weights import log_z_is
from demx.space import Euclidean
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture

METHODS = {
    "ais": lambda scale: (ais, Annealed(outer_steps=5, scale=scale)),
    "smc": lambda scale: (smc, Smc(outer_steps=5, scale=scale)),
    "nested": lambda scale: (nested, Nested(scale=scale / 2)),
}


def gaussian(dim: int = 10) -> tuple[FunctionTarget, float]:
    """Standard deviations from 0.4 to 1.6 along random directions, off-centre; its log Z."""
    rng = np.random.default_rng(7)
    basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    width = np.linspace(0.4, 1.6, dim)
    precision = jnp.asarray(basis @ np.diag(width**-2) @ basis.T, float)
    centre = jnp.asarray(0.5 * rng.normal(size=dim), float)
    energy = lambda x: 0.5 * (x - centre) @ precision @ (x - centre)  # noqa: E731
    log_z = float(0.5 * dim * np.log(2 * np.pi) + np.log(width).sum())
    return FunctionTarget(energy, Euclidean(dim)), log_z


def mixture() -> tuple[GaussianMixture, float]:
    """Three modes of weights 0.6, 0.3 and 0.1, of unequal shapes."""
    means = np.array([[2.0, -1.0], [-3.0, 0.5], [0.5, 4.0]])
    scales = np.array([[0.5, 0.8], [1.0, 0.4], [0.7, 0.6]])
    return GaussianMixture(means, scales, np.array([0.6, 0.3, 0.1])), 0.0


TARGETS = {"gaussian": (gaussian, 1.5), "mixture": (mixture, 3.0)}


def estimate(method, seed: int, n: int = 2048) -> tuple[float, float]:
    """log Z and its standard error, with everything tuned anew."""
    key_tune, key_sample = jax.random.split(jax.random.key(seed))
    state = method.init(key_tune)
    for i in range(method.outer_steps):
        state, _ = method.step(jax.random.fold_in(key_tune, i), state)
    drawn = method.sample(key_sample, state, n)
    if drawn.log_z is not None:
        return drawn.log_z
    island = None if drawn.island is None else np.asarray(drawn.island)
    found = log_z_is(np.asarray(drawn.log_weight, float), island)
    return found.value, found.standard_error


def dynesty_estimate(target, half_width: float, seed: int) -> tuple[float, float]:
    """log Z by dynesty: ∫ p̃ = volume · E_uniform[p̃]."""
    import dynesty

    dim = target.space.dim
    log_density = jax.jit(lambda x: target.log_density(x))
    sampler = dynesty.NestedSampler(
        lambda x: float(log_density(jnp.asarray(x, float))),
        lambda u: half_width * (2 * u - 1),
        dim,
        nlive=500,
        rstate=np.random.default_rng(seed),
    )
    sampler.run_nested(dlogz=0.01, print_progress=False)
    found = sampler.results
    return float(found.logz[-1] + dim * np.log(2 * half_width)), float(found.logzerr[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds: expected at least 2, got {options.seeds}")
    for label in options.targets:
        make_target, scale = TARGETS[label]
        target, exact = make_target()
        results = {}
        for name in options.methods:
            factory, settings = METHODS[name](scale)
            method = factory(target, settings)
            found = np.array([estimate(method, seed) for seed in range(options.seeds)])
            results[name] = found
            score = (found[:, 0] - exact) / found[:, 1]
            inside = int((np.abs(score) < 2).sum())
            print(
                f"{label:9s} {name:7s} {inside}/{options.seeds} within 2 standard errors; "
                f"log Z - exact {(found[:, 0] - exact).mean():+.4f}, "
                f"sd {found[:, 0].std(ddof=1):.4f}, own error {found[:, 1].mean():.4f}",
                flush=True,
            )
        if "nested" in options.methods and importlib.util.find_spec("dynesty"):
            value, error = dynesty_estimate(target, 4 * scale, 0)
            ours, own = results["nested"][0]
            print(
                f"{label:9s} dynesty {value:.4f} ± {error:.4f}, nested {ours:.4f} ± {own:.4f}, "
                f"exact {exact:.4f}: apart by {abs(value - ours) / np.hypot(error, own):.1f} errors"
            )


if __name__ == "__main__":
    main()
