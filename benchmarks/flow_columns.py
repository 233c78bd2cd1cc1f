"""The paper's NLL, ESS and log Z of a run in many dimensions, where exact traces cost too much.

    python benchmarks/flow_columns.py lj55 --run runs/lj55-idem-seed0

An OT-CFM flow (`demx.evaluate.flow_matching`) is trained on the run's samples. NLL is the mean of
-log q over points of the test set, log q by Hutchinson's trace with a few probes: unbiased, and the
probes' scatter is within its standard error, and so is the lower bound of log Z, the mean of log w,
w = p̃/q at draws of the flow. ESS and log Z itself are of the weights; there the probes' noise adds
to theirs, so the ESS told is too low, and that log Z too high. Seed 0. A line is printed for every
block of points, of all so far.
"""

import argparse
import time

import equinox as eqx
import jax
import numpy as np

import demx
from demx import flow as flows
from demx.evaluate.evaluation import batched_energies
from demx.evaluate.flow_matching import fit_flow, likelihoods
from demx.evaluate.weights import ess, log_z_is

SMALL = 16  # weights of an ESS of the paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--run", required=True)
    parser.add_argument("-n", type=int, default=2000, help="samples that the flow is trained on")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--points", type=int, default=64, help="of the NLL, and of the weights")
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--probes", type=int, default=4)
    options = parser.parse_args()
    fitted, begun = demx.load(options.run), time.perf_counter()
    key_flow, key_points, key_draws = jax.random.split(jax.random.key(0), 3)

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - begun:6.0f} s  {text}", flush=True)

    x = np.asarray(fitted.sample(options.n).x)
    x = x[np.isfinite(x).all(axis=tuple(range(1, x.ndim)))]
    tell(f"{len(x)} finite samples of {options.n}")
    trained = fit_flow(
        key_flow, x, fitted.target.space, steps=options.steps,
        progress=lambda step, loss: tell(f"step {step}, loss {loss:.4f}"),
    )  # fmt: skip
    noisy = lambda flow: flow.probes  # noqa: E731
    trained = eqx.tree_at(noisy, trained, options.probes, is_leaf=lambda leaf: leaf is None)
    test = fitted.reference().test
    rows = np.random.default_rng(0).permutation(len(test))[: options.points]
    nll: list[float] = []
    for start in range(0, options.points, options.block):
        key = jax.random.fold_in(key_points, start)
        nll += (
            -np.asarray(likelihoods(trained, test[rows[start:][: options.block]], key))
        ).tolist()
        values = np.array(nll)
        error = values.std(ddof=1) / len(values) ** 0.5
        tell(f"nll {values.mean():.2f} ± {error:.2f} ({len(values)} test points)")
    weights: list[float] = []
    for start in range(0, options.points, options.block):
        key = jax.random.fold_in(key_draws, start)
        drawn, log_prob = flows.samples(trained, key, options.block)
        weights += (-batched_energies(fitted.target, np.asarray(drawn)) - log_prob).tolist()
        log_weight = np.nan_to_num(np.array(weights), nan=-np.inf, posinf=-np.inf)
        small = log_weight[: len(log_weight) // SMALL * SMALL].reshape(-1, SMALL)
        of_few = f", of {SMALL}: {np.mean([ess(w)[0] for w in small]):.3f}" if len(small) else ""
        value, error = log_z_is(log_weight)
        known = log_weight[np.isfinite(log_weight)]
        lower = f"{known.mean():.2f} ± {known.std(ddof=1) / len(known) ** 0.5:.2f}"
        tell(
            f"ess {ess(log_weight)[0]:.3f}{of_few}, log_z_is {value:.2f} ± {error:.2f}, "
            f"log_z_lower {lower if len(known) == len(log_weight) else '-inf'} "
            f"({len(log_weight)} draws, {len(log_weight) - len(known)} without weight)"
        )


if __name__ == "__main__":
    main()
