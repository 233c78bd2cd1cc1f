"""How many evaluations of the score are enough: few by good rules against 1000 Euler steps.

    python benchmarks/steps.py                       the exact score of gmm40
    python benchmarks/steps.py --run RUN -n 1000     a trained run (lj13)
    python benchmarks/steps.py --run RUN --evaluations 100 200 --local-variance 0 0.0059 --no-euler

Each line says how many evaluations of the score a sample takes: a midpoint step takes two.

A run is judged by its validation set: grids are chosen here. Prints each metric with its
standard error over blocks, beside the floor (half of the set against the other). Seed 0.
"""

import argparse
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import demx
from demx.devices import chunk_rows, everywhere, map_chunks
from demx.evaluate import metrics
from demx.evaluate.evaluation import batched_energies
from demx.noise import Geometric
from demx.sde import Euler, Grid, Midpoint, Posterior, reverse
from demx.space import normal
from demx.targets.gaussian_mixture import gmm40

BLOCKS = 5


def ways(sigma_last: float, counts: list[int], spreads: list[float], euler: bool):
    for calls in counts:
        steps = (calls + 1) // 2
        yield f"midpoint, {2 * steps - 1}", Midpoint(), Grid(steps, sigma_last=sigma_last)
    for calls, s2 in itertools.product(counts, spreads):
        yield f"posterior, s² = {s2:g}, {calls}", Posterior(s2), Grid(calls, sigma_last=sigma_last)
    if euler:
        yield "Euler, power grid, 100", Euler(), Grid(100, sigma_last=sigma_last)
        yield "Euler, uniform grid, 1000", Euler(), Grid(1000, "uniform")


def draw(key, score, noise, space, variance, grid, rule, n, rows):
    """n samples in chunks of `rows`, over all devices."""

    @jax.jit
    def run(key, tree):
        def some(tree, key):
            key_prior, key_path = jax.random.split(key)
            start = jnp.sqrt(variance) * normal(key_prior, space, (rows,))
            given = (noise, space, start, grid.times(noise), rule)
            return reverse(key_path, lambda t, x: score(tree, t, x), *given)

        return map_chunks(some, tree, jax.random.split(key, n // rows))

    return lambda tree: np.asarray(run(*everywhere((key, tree)))).reshape(n, *space.shape)


def show(label: str, rows: dict[str, list[float]]) -> None:
    cells = (
        f"{name} {np.mean(v):.4g} ± {np.std(v, ddof=1) / len(v) ** 0.5:.2g}"
        for name, v in rows.items()
    )
    print(f"{label:28}", *cells, sep="  ")


def mixture(n: int, *which) -> None:
    target, noise = gmm40(), Geometric(0.1, 80.0)
    variance = 80.0**2 + 22.0**2

    def score(means, t, x):
        return jax.grad(target.smoothed(noise.variance(t)).log_density)(x)

    def judged(x, y):
        nearest = np.argmin(((x[:, None] - np.asarray(target.means)) ** 2).sum(-1), axis=1)
        share = np.bincount(nearest, minlength=40) / len(x)
        return {
            "w2": metrics.w2(x, y),
            "mode_tv": 0.5 * np.abs(share - 1 / 40).sum(),
            "energy_w2": metrics.energy_w2(
                batched_energies(target, x), batched_energies(target, y)
            ),
        }

    exact = np.asarray(target.sample(jax.random.key(1), 2 * BLOCKS * n))
    grids = tuple(ways(0.1, *which))
    compare(n, exact, judged, score, target.means, noise, target.space, variance, grids, 1000)


def trained(directory: str, n: int, *which) -> None:
    fitted = demx.load(directory)
    target, model = fitted.target, fitted.state.average
    exact = fitted.reference().validation
    variance = float(model.precondition.prior_variance(model.noise.variance(jnp.ones(()))))

    def judged(x, y):
        pair = batched_energies(target, x), batched_energies(target, y)
        return {
            "energy_w2": metrics.energy_w2(*pair),
            "energy_mean": float(np.mean(pair[0])),
            "distance_tv": metrics.distance_tv(x, y),
        }

    def score(tree, t, x):
        return eqx.combine(tree, rest)(t, x)

    arrays, rest = eqx.partition(model, eqx.is_array)
    grids = tuple(ways(fitted.config["grid"]["sigma_last"], *which))
    given = (score, arrays, model.noise, target.space, variance, grids, model.rows_in_cache)
    compare(n, exact, judged, *given)


def compare(n, exact, judged, score, tree, noise, space, variance, grids, rows) -> None:
    blocks = exact[: 2 * BLOCKS * n].reshape(2, BLOCKS, -1, *space.shape)
    floor = [judged(a, b) for a, b in zip(*blocks, strict=True)]
    show("floor", {k: [f[k] for f in floor] for k in floor[0]})
    size = blocks.shape[2]
    for label, rule, grid in grids:
        key = jax.random.key(0)
        total = BLOCKS * size
        x = draw(key, score, noise, space, variance, grid, rule, total, chunk_rows(total, rows))(
            tree
        )
        found = [judged(a, b) for a, b in zip(x.reshape(BLOCKS, size, *space.shape), blocks[1],
                                              strict=True)]  # fmt: skip
        show(label, {k: [f[k] for f in found] for k in found[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--evaluations", type=int, nargs="+", default=[25, 50, 100])
    parser.add_argument("--local-variance", type=float, nargs="+", default=[0.0])
    parser.add_argument("--euler", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    which = options.n, options.evaluations, options.local_variance, options.euler
    trained(options.run, *which) if options.run else mixture(*which)


if __name__ == "__main__":
    main()
