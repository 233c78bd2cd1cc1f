"""What each idea contributes on lj13: the preset with one of them left out, for the same time.

    python benchmarks/ablation.py --budget 5m --seeds 0

Metrics of n = 2000 samples against the *validation* set. Prints one line a variant and seed;
runs are kept under runs/ablation, so a second call only evaluates.
"""

import argparse

import numpy as np

import demx
from demx import config
from demx.evaluate import metrics
from demx.evaluate.evaluation import batched_energies, finite_rows

CONDITIONAL = (
    "walk=none",
    "estimator.kind=mixed",
    "estimator.local_variance=0.0059",
    'estimator.wrap=["conditional"]',
    "draws.num_samples=64",
)
PLAIN = (
    "walk=none", "moves=none", "strays=none", "estimator.kind=log_sum_exp",
    "estimator.wrap=[]", "draws.num_samples=512",
)  # fmt: skip
BEST = ("network.kind=directed", "walk.local_variance=0.0059")
VARIANTS = {
    "everything": BEST,
    "lean network": ("network.kind=lean", *BEST[1:]),
    "EGNN": ("network.kind=egnn", *BEST[1:]),
    "importance samples, x_0 kept, no walk": (*BEST[:1], *CONDITIONAL),
    "no strays": (*BEST, "strays=none"),
    "no moves": (*BEST, "moves=none"),
    "S_K (K = 512), nothing else": (*BEST[:1], *PLAIN),
    "the same, clip of 20": (
        *BEST[:1], *PLAIN, "clip.max_norm=20.0", "clip.max_sigmas=inf",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-n", type=int, default=2000)
    options = parser.parse_args()
    for label, sets in VARIANTS.items():
        for seed in options.seeds:
            name = label.replace(" ", "-").replace(",", "").replace("=", "")
            fitted = demx.fit(
                "lj13",
                seed=seed,
                budget=options.budget,
                directory=f"runs/ablation/{name}-{seed}",
                settings=config.parse_set(sets),
                progress=False,
            )
            reference = fitted.reference().validation
            x = np.asarray(fitted.sample(options.n).x)
            energies = batched_energies(fitted.target, x)
            good = finite_rows(x, energies)
            x, energies = x[good], energies[good]
            of_reference = batched_energies(fitted.target, reference)
            p = fitted.progress
            print(
                f"{label:38} seed {seed}  loops {p.step}  calls {p.energy_calls:,}  "
                f"median {np.median(energies):.2f}  "
                f"energy_w2 {metrics.energy_w2(energies, of_reference):.2f}  "
                f"distance_tv {metrics.distance_tv(x, reference[: len(x)]):.3f}  "
                f"bad {int((~good).sum())}",
                flush=True,
            )


if __name__ == "__main__":
    main()
