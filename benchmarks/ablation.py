"""What each idea contributes on lj13: the preset with one of them left out, for the same time.

    python benchmarks/ablation.py --budget 4m --seeds 0

Metrics of n = 1000 samples against the *validation* set. Prints one line a variant and seed;
runs are kept under runs/ablation, so a second call only evaluates.
"""

import argparse
import re

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
# one gradient, at the end that made x_t, as in adjoint matching (arXiv 2504.11713)
ALONE = (
    "walk=none", "estimator.kind=log_sum_exp", 'estimator.wrap=["conditional"]',
    "draws.num_samples=1", "draws.antithetic=false",
)  # fmt: skip
PLAIN = (
    "walk=none", "moves=none", "strays=none", "estimator.kind=log_sum_exp",
    "estimator.wrap=[]", "draws.num_samples=512",
)  # fmt: skip
PAPER = (
    *PLAIN, "clip.max_norm=20.0", "clip.max_sigmas=inf", "training.optimiser=adam",
    "training.learning_rate=1e-3", "network.kind=egnn", "precondition.kind=plain",
)  # fmt: skip
VARIANTS = {
    "the preset": (),
    "Adam instead of SOAP": ("training.optimiser=adam", "training.learning_rate=1e-3"),
    "lean network": ("network.kind=lean",),
    "no strays": ("strays=none",),
    "no moves": ("moves=none",),
    "no walk: weights, x_0 kept, mix": CONDITIONAL,
    "no walk, strays, moves: S_K": PLAIN,
    "the same with Richardson": (*PLAIN, 'estimator.wrap=["richardson"]'),
    "the same with a clip of 20": (*PLAIN, "clip.max_norm=20.0", "clip.max_sigmas=inf"),
    "and Adam, EGNN, not preconditioned": PAPER,
    "no walk: the gradient at x_0 alone": ALONE,
    "no walk: x_0 alone, mix": (
        *ALONE,
        "estimator.kind=mixed",
        "estimator.local_variance=0.0059",
    ),
}
# no time for a schedule to end: the same rate throughout, and the moving average
COMMON = ("training.schedule=constant",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--variants", type=int, nargs="+", default=range(len(VARIANTS)))
    options = parser.parse_args()
    for label, sets in [list(VARIANTS.items())[i] for i in options.variants]:
        for seed in options.seeds:
            name = re.sub(r"[^\w]+", "-", label)
            fitted = demx.fit(
                "lj13",
                seed=seed,
                budget=options.budget,
                directory=f"runs/ablation/{name}-{seed}",
                settings=config.parse_set((*COMMON, *sets)),
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
