"""How long the parts take here: fused against plain, as ratios in one run, and peak memory.

    python benchmarks/parts.py [--json]

Median of 5 after a warm-up. Absolute seconds depend on the machine; the ratios are what counts.
"""

import json
import resource
import statistics
import sys
import time

import jax
import jax.numpy as jnp

from demx import api, config
from demx.draws import Draws, estimate_batch
from demx.estimator import LogSumExp
from demx.targets.double_well import dw4
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import gmm40
from demx.targets.lennard_jones import lj13, lj55

SIZES = {  # batch and K of the public configurations
    "gmm40": (gmm40, 512, 500),
    "dw4": (dw4, 512, 1000),
    "lj13": (lj13, 512, 1000),
    "lj55": (lj55, 128, 100),
}


def median_seconds(function, *arguments) -> float:
    jax.block_until_ready(function(*arguments))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def estimator_seconds(target, batch: int, num_samples: int) -> tuple[float, float]:
    """The fused, streamed estimate against vmap(value_and_grad) with noise of its own a point."""
    x = 1.5 * jax.random.normal(jax.random.key(0), (batch, *target.space.shape))
    v = jnp.full(batch, 0.25)

    @jax.jit
    def fused(key):
        return estimate_batch(key, LogSumExp(), Draws(num_samples), target, v, x, x).score

    generic = FunctionTarget(lambda y: -target.log_density(y), target.space)

    @jax.jit
    def plain(key):
        noise = jax.random.normal(key, (batch, num_samples, *target.space.shape))
        points = x[:, None] + 0.5 * target.space.project(noise)
        value, score = jax.vmap(jax.vmap(jax.value_and_grad(generic.log_density)))(points)
        weight = jax.nn.softmax(value, axis=1)
        return jnp.einsum("bk,bk...->b...", weight, score)

    key = jax.random.key(1)
    return median_seconds(fused, key), median_seconds(plain, key)


def step_seconds(name: str, batch: int, num_samples: int) -> float:
    """One inner step (estimate, gradient, update) with the preset's network."""
    inner = 3
    settings = {
        "draws": {"num_samples": num_samples},
        "training": {"batch_size": batch, "inner_steps": inner, "new_samples": 1},
        "grid": {"num_steps": 1},
    }
    target, full = api.resolve(name, settings=settings)
    method = config.build_method("idem", target, full)
    state = method.init(jax.random.key(0))
    return median_seconds(lambda: method.step(jax.random.key(1), state)) / inner


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    rows = {}
    for name, (_, batch, num_samples) in SIZES.items():
        step = step_seconds(name, batch, num_samples)
        rows[name] = {"batch": batch, "K": num_samples, "step_seconds": step}
    # before the plain formulation, which is what needs the memory
    memory = peak_gigabytes()
    for name, (make, batch, num_samples) in SIZES.items():
        fused, plain = estimator_seconds(make(), batch, num_samples)
        rows[name] |= {"estimate_seconds": fused, "plain_over_fused": plain / fused}
    if "--json" in sys.argv:
        print(json.dumps({"targets": rows, "peak_gigabytes_of_steps": memory}, indent=2))
        return
    print(f"{'target':8}{'batch':>7}{'K':>7}{'step s':>10}{'estimate s':>12}{'plain/fused':>13}")
    for name, row in rows.items():
        print(
            f"{name:8}{row['batch']:7}{row['K']:7}{row['step_seconds']:10.4f}"
            f"{row['estimate_seconds']:12.4f}{row['plain_over_fused']:13.1f}"
        )
    print(f"peak memory of the process after all steps: {memory:.2f} GB")


if __name__ == "__main__":
    main()
