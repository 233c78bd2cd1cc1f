"""The numbers of docs/results.md: fit over seeds, evaluate, print mean ± standard error.

    python benchmarks/results.py gmm40 --seeds 0 1 2
    python benchmarks/results.py lj13 --seeds 0 1 2 -n 2000 --repeats 2 --correct hmc

Against the shipped test sets, or those of `demx reference -o FILE` with --reference FILE. Runs are
kept under --directory, so a second call only evaluates.
"""

import argparse
from pathlib import Path

import numpy as np

import demx
from demx.evaluate.weights import ess
from demx.store import Store

SMALL = 16  # weights of an ESS of the paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", default=None)
    parser.add_argument("--method", default="idem")
    parser.add_argument("--recipe", action="store_true", help="settings by a probe, no preset")
    parser.add_argument("--directory", default="runs/results")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--likelihood", default="auto")
    parser.add_argument("--likelihood-n", type=int, default=1000)
    parser.add_argument("--correct", choices=["mala", "hmc", "smc"], default=None)
    parser.add_argument("--correct-steps", type=int, default=300)
    parser.add_argument("--reference", type=Path, default=None)
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        kind = f"{options.method}{'-recipe' if options.recipe else ''}"
        directory = f"{options.directory}/{options.target}-{kind}-{seed}"
        fitted = demx.fit(
            options.target,
            method=options.method,
            seed=seed,
            budget=options.budget,
            recipe=options.recipe,
            directory=directory,
        )
        judged = fitted.evaluate(
            options.n,
            repeats=options.repeats,
            seed=1000 + seed,
            likelihood=options.likelihood,
            likelihood_n=options.likelihood_n,
            reference=options.reference,
            correct=options.correct,
            correct_steps=options.correct_steps,
        )
        found.append(judged)
        p = fitted.progress
        history = Store(directory).history()
        medians = [h["evaluation"]["energy_median"] for h in history if "evaluation" in h]
        print(f"seed {seed}: {p.step} outer loops, {p.seconds:.0f} s, {p.energy_calls:,} calls")
        print("  median energy while training:", " ".join(f"{m:.5g}" for m in medians))
        bad = sum(h["bad"] for h in history if h.get("bad") is not None)
        print(f"  bad {bad}, samples not finite {judged.samples.bad}")
        print(f"  evaluated for {judged.samples.energy_calls:,} calls:", *judged.verdict)
        if judged.log_weight is not None:  # the more weights, the lower
            weights = judged.log_weight[: len(judged.log_weight) // SMALL * SMALL]
            shares = [ess(block)[0] for block in weights.reshape(-1, SMALL)]
            error = np.std(shares, ddof=1) / len(shares) ** 0.5
            print(f"  ess of {SMALL} weights, as in the paper: {np.mean(shares):.3f} ± {error:.2g}")
    print(f"\n{'metric':15}{'n':>7}  {'mean over seeds':>22}  {'floor':>20}  each seed")
    for name in found[0].metrics:
        metrics = [f.metrics[name] for f in found if name in f.metrics]
        values = np.array([m.value for m in metrics])
        # of one run: the evaluation's own error, which knows nothing of other trainings
        error = metrics[0].standard_error
        if len(values) > 1:
            error = values.std(ddof=1) / len(values) ** 0.5
        floors = [(m.floor, m.floor_standard_error or 0.0) for m in metrics if m.floor is not None]
        floor = "{:.4g} ± {:.2g}".format(*np.mean(floors, axis=0)) if floors else "-"
        each = " ".join(f"{m.value:.4g}±{m.standard_error:.2g}" for m in metrics)
        print(
            f"{name:15}{metrics[0].n:7}  {values.mean():12.4g} ± {error:7.2g}  {floor:>20}  {each}"
        )


if __name__ == "__main__":
    main()
