"""An independent check of the reference sets: plain random-walk Metropolis in double precision.

    python benchmarks/metropolis.py dw4 --steps 4000 --step-size 0.35
    python benchmarks/metropolis.py lj13 --steps 4000 --step-size 0.03

Shares nothing with demx but the numbers of the target's definition: NumPy, no gradients. Chains
start from all reference samples; if these were biased, mean energies would drift away.
"""

import argparse

import numpy as np

from demx.config import build_target
from demx.evaluate import reference


def energy(name: str, x: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(x.shape[1], 1)
    r2 = ((x[:, first] - x[:, second]) ** 2).sum(axis=-1)
    if name == "dw4":
        u = np.sqrt(r2) - 4
        return (0.9 * u**4 - 4 * u**2).sum(axis=1)
    inverse6 = r2**-3
    centred = x - x.mean(axis=1, keepdims=True)
    return 2 * (inverse6 * (inverse6 - 2)).sum(axis=1) + 0.5 * (centred**2).sum(axis=(1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=["dw4", "lj13", "lj55"])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--step-size", type=float, default=0.35)
    parser.add_argument("--chains", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sets = reference.find(given.target, {}, build_target(given.target, {}))
    x = np.concatenate([sets.validation, sets.test])[: given.chains].astype(float)
    rng = np.random.default_rng(given.seed)
    e = energy(given.target, x)
    print(f"at the start: {e.mean():.4f} ± {e.std() / len(e) ** 0.5:.4f}")
    total, accepted = np.zeros(len(e)), 0.0
    for step in range(1, given.steps + 1):
        y = x + given.step_size * rng.normal(size=x.shape)
        y -= y.mean(axis=1, keepdims=True)
        proposed = energy(given.target, y)
        take = np.log(rng.random(len(e))) < e - proposed
        x[take], e[take] = y[take], proposed[take]
        total += e
        accepted += take.mean()
        if step % max(1, given.steps // 4) == 0:
            mean = total / step
            error = mean.std() / len(mean) ** 0.5
            print(
                f"{step} steps: mean energy {mean.mean():.4f} ± {error:.4f}, "
                f"acceptance {accepted / step:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
