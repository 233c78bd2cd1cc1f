"""One measurement in a process of its own: `python -m demx.bench.worker TASK`, a JSON object.

Prints a JSON object: the seconds of every repetition, the peak memory of the process and how
often JAX compiled. A process a measurement, so that memory is its own and devices can differ.
"""

import json
import os
import resource
import sys
import time
from typing import Any


def _run_jax(task: dict[str, Any]):
    os.environ["JAX_NUM_CPU_DEVICES"] = str(task.get("devices", 1))
    import jax

    from demx import registry, resolve
    from demx.bench import parts

    part, divide = task["part"], 1
    batch, num_samples = task.get("batch", 0), task.get("num_samples", 0)
    if part in ("estimate", "plain_estimate", "energy_calls"):
        target, _ = resolve.named_target(task["target"], task.get("settings", {}))
        if part == "energy_calls":
            run = parts.energy_calls(target, batch)
        else:
            run = getattr(parts, part)(target, batch, num_samples)
    elif part == "network_gradient":
        run = parts.network_gradient(task["target"], batch, task.get("network"))
    elif part == "inner_step":
        run, divide = parts.inner_step(task["target"], batch, num_samples, task.get("network"))
    elif part == "sampling":
        run = parts.sampling(task["target"], batch)
    else:
        raise ValueError(f"part: expected one of {sorted(registry.TARGETS)}, got {part!r}")
    return (lambda: jax.block_until_ready(run())), divide


def _run_torch(task: dict[str, Any]):
    import numpy as np

    from demx.bench.yardstick import Yardstick

    means = None
    if task["target"] == "gmm40":
        from demx.targets.gaussian_mixture import gmm40

        means = np.asarray(gmm40().means)
    yardstick, part, batch = Yardstick(task["target"], means), task["part"], task["batch"]
    if part == "sampling":
        steps = task["steps"]
        return yardstick.euler_steps(batch, steps), steps / 1000
    if part == "network_gradient":
        return yardstick.network_gradient(batch), 1
    return getattr(yardstick, part)(batch, task["num_samples"]), 1


def main() -> None:
    """Run the task of the command line."""
    task = json.loads(sys.argv[1])
    run, divide = (_run_torch if task.get("torch") else _run_jax)(task)
    started = time.perf_counter()
    run()
    first, seconds = time.perf_counter() - started, []
    for _ in range(task.get("repeats", 5)):
        started = time.perf_counter()
        run()
        seconds.append((time.perf_counter() - started) / divide)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "first": first, "peak_gigabytes": peak}))


if __name__ == "__main__":
    main()
