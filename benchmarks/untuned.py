"""Energies that demx has never seen, whose truth is known in closed form, by the recipe.

    python benchmarks/untuned.py --budget 1m

For each: a share or a width by 10 000 samples, and by the weights, beside the truth; log Z by 4000
weights with their effective share and k̂. Seed 0.

wells: an asymmetric double well in x_0, barriers of 7 kT; x_1 is wider on the right, x_2 normal.
far: two normals in the plane, one of them 12 away from where the probe begins.
normal: 15 dimensions, widths from 0.2 to 2, the mean off by 2 in each.
modes: three normals in 10 dimensions with widths 0.4, 0.7 and 1 and shares 0.5, 0.3, 0.2.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import demx
from demx.evaluate.evidence import log_z
from demx.targets.gaussian_mixture import GaussianMixture

LINE = jnp.linspace(-3.0, 3.0, 6001)


class Case(NamedTuple):
    """measure(x, w): of samples with weights that add up to 1."""

    energy: Callable
    dim: int
    what: str
    measure: Callable[[np.ndarray, np.ndarray], float]
    truth: float
    log_z: float


def wells() -> Case:
    def of_x0(x):
        return 7.0 * (x**2 - 1) ** 2 + 0.6 * x

    def energy(x):
        width = 0.2 + 0.6 * jax.nn.sigmoid(4 * x[0])
        beside = ((x[1] - 0.5 * x[0] ** 2) / width) ** 2 + (2 * x[2]) ** 2
        return of_x0(x[0]) + 0.5 * beside + jnp.log(width)

    density = jnp.exp(-of_x0(LINE))
    total = jnp.sum(density)
    right = jnp.sum(jnp.where(LINE > 0, density, 0)) / total
    log_z = jnp.log(total * (LINE[1] - LINE[0]) * 2 * jnp.pi * 0.5)
    return Case(energy, 3, "x_0 > 0", lambda x, w: w[x[:, 0] > 0].sum(), float(right), float(log_z))


def far() -> Case:
    mixture = GaussianMixture([[12.0, 0.0], [2.0, 3.0]], [0.5, 1.0], [0.8, 0.2])
    return Case(
        lambda x: -mixture.log_density(x), 2, "x_0 > 7", lambda x, w: w[x[:, 0] > 7].sum(), 0.8, 0.0
    )


def normal() -> Case:
    widths = np.geomspace(0.2, 2.0, 15)
    means = np.random.default_rng(3).choice([-2.0, 2.0], 15)

    def energy(x):
        return 0.5 * jnp.sum(((x - means) / widths) ** 2)

    def widest(x, w):
        """The coordinate whose spread about its mean is most wrong, in units of its own."""
        found = np.sqrt(w @ (x - means) ** 2) / widths
        return found[np.abs(np.log(found)).argmax()]

    log_z = np.log(widths).sum() + 7.5 * np.log(2 * np.pi)
    return Case(energy, 15, "worst width", widest, 1.0, float(log_z))


def modes() -> Case:
    signs = np.where(np.arange(10) % 2, 1.0, -1.0)
    means = 1.5 * np.stack([np.ones(10), signs, np.r_[-np.ones(5), np.zeros(5)]])
    mixture = GaussianMixture(means, [0.4, 0.7, 1.0], [0.5, 0.3, 0.2])
    owner = jax.jit(
        jax.vmap(lambda x: jnp.exp(mixture.log_terms(x) - logsumexp(mixture.log_terms(x))))
    )
    return Case(
        lambda x: -mixture.log_density(x), 10, "narrow mode",
        lambda x, w: w @ np.asarray(owner(x), float)[:, 0], 0.5, 0.0,
    )  # fmt: skip


CASES = {"wells": wells, "far": far, "normal": normal, "modes": modes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="1m")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    for name in options.cases:
        case = CASES[name]()
        fitted = demx.fit(case.energy, dim=case.dim, budget=options.budget, progress=False)
        plain, weighted = fitted.sample(10_000), fitted.sample(4000, weights=True)
        even = np.full(len(plain.x), 1 / len(plain.x))
        w = np.exp(np.asarray(weighted.log_weight, float) - np.max(weighted.log_weight))
        z, p = log_z(weighted), fitted.progress
        print(
            f"{name:7}{p.step:4} loops, {p.energy_calls:,} calls, {p.seconds:.0f} s  "
            f"{case.what}: {case.measure(np.asarray(plain.x), even):.3f}, by weights "
            f"{case.measure(np.asarray(weighted.x), w / w.sum()):.3f}, true {case.truth:.3f}  "
            f"log Z {z.value:.3f} ± {z.standard_error:.3f}, true {case.log_z:.3f}  {z.of_weights}",
            flush=True,
        )


if __name__ == "__main__":
    main()
