"""The numbers of docs/results.md: fit over seeds, evaluate, print mean ± standard error.

    python benchmarks/results.py gmm40 --seeds 0 1 2
    python benchmarks/results.py lj13 --seeds 0 1 2 3 4 --budget 3m

Runs are kept under runs/results, so a second call only evaluates.
"""

import argparse

import numpy as np

import demx
from demx.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", default=None)
    parser.add_argument("--method", default="idem")
    parser.add_argument("-n", type=int, default=1000)
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        directory = f"runs/results/{options.target}-{options.method}-{seed}"
        fitted = demx.fit(
            options.target,
            method=options.method,
            seed=seed,
            budget=options.budget,
            directory=directory,
        )
        found.append(fitted.evaluate(options.n, repeats=10, seed=1000 + seed))
        p = fitted.progress
        history = Store(directory).history()
        medians = [h["evaluation"]["energy_median"] for h in history if "evaluation" in h]
        print(f"seed {seed}: {p.step} outer loops, {p.seconds:.0f} s, {p.energy_calls:,} calls")
        print("  median energy while training:", " ".join(f"{m:.5g}" for m in medians))
        print("  bad", sum(h["bad"] for h in history), "samples not finite", found[-1].samples.bad)
    print(f"\n{'metric':15}{'n':>7}  {'mean over seeds':>22}  {'floor':>20}  each seed")
    for name in found[0].metrics:
        metrics = [f.metrics[name] for f in found]
        values = np.array([m.value for m in metrics])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        floors = [m.floor for m in metrics if m.floor is not None]
        floor = f"{np.mean(floors):.4g}" if floors else "-"
        each = " ".join(f"{v:.4g}" for v in values)
        print(
            f"{name:15}{metrics[0].n:7}  {values.mean():12.4g} ± {error:7.2g}  {floor:>20}  {each}"
        )


if __name__ == "__main__":
    main()
