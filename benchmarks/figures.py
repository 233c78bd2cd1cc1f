"""The figures of the paper from finished runs: samples over contours, energies, distances.

    python benchmarks/figures.py --directory runs/results

From the runs TARGET-idem-0 that `benchmarks/results.py` keeps there. Writes docs/figures/gmm40.png
(1000 samples over the contours of the density) and docs/figures/particles.png: for dw4, lj13 and
lj55 energies and interatomic distances of 1000 samples beside the test set. Seed 0.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import demx
from demx.evaluate.evaluation import batched_energies
from demx.report import figures
from demx.space import distances

CLUSTERS = ("dw4", "lj13", "lj55")
MOST = 10_000  # reference samples of a histogram


def pairs(x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(distances))(x)).ravel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="runs/results")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--targets", nargs="+", default=["gmm40", *CLUSTERS])
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    fitted = {t: demx.load(f"{options.directory}/{t}-idem-0") for t in options.targets}
    drawn = {t: np.asarray(f.sample(options.n, seed=0).x) for t, f in fitted.items()}
    if "gmm40" in fitted:
        figure = Figure(figsize=(5, 5), layout="constrained")
        figures.plane(figure.add_subplot(), fitted["gmm40"].target, drawn["gmm40"])
        figure.savefig(options.out / "gmm40.png", dpi=110)
    clusters = [t for t in CLUSTERS if t in fitted]
    if clusters:
        figure = Figure(figsize=(3.6 * len(clusters), 5.6), layout="constrained")
        axes = figure.subplots(2, len(clusters), squeeze=False)
        for (upper, lower), name in zip(axes.T, clusters, strict=True):
            target, x = fitted[name].target, drawn[name]
            test = np.asarray(fitted[name].reference().test[:MOST])
            figures.histogram(
                upper, "energy", batched_energies(target, x), batched_energies(target, test)
            )
            figures.histogram(lower, "interatomic distance", pairs(x), pairs(test))
            upper.set_title(f"{name}  {upper.get_title()}".strip(), fontsize="medium")
        figure.savefig(options.out / "particles.png", dpi=110)


if __name__ == "__main__":
    main()
