"""One measurement in a process of its own: `python -m demx.bench.worker TASK`, a JSON object.

Prints a JSON object when it is ready, and one for each line on standard input: the seconds of a
repetition with warm caches, and the peak memory of the process so far. A process a measurement,
so that memory is its own and devices can differ.
"""

import json
import os
import resource
import sys
import time
from typing import Any

SHORT = 1.0  # seconds: repetitions below are preceded by one that is not timed


def _run_jax(task: dict[str, Any]):
    os.environ["JAX_NUM_CPU_DEVICES"] = str(task.get("devices", 1))
    import jax

    from demx import resolve
    from demx.bench import parts

    part, divide = task["part"], 1
    batch, num_samples = task.get("batch", 0), task.get("num_samples", 0)
    if part in ("estimate", "plain_estimate"):
        _, target = resolve.named_target(task["target"], task.get("settings", {}))
        extra = {"own_noise": True} if task.get("own_noise") else {}
        run = getattr(parts, part)(target, batch, num_samples, **extra)
    elif part == "network_gradient":
        run = parts.network_gradient(task["target"], batch, task.get("network"))
    elif part == "inner_step":
        run, divide = parts.inner_step(task["target"], batch, num_samples, task.get("network"))
    else:
        run = parts.sampling(task["target"], batch)
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
    return getattr(yardstick, part)(batch, task["num_samples"]), 1


def main() -> None:
    """Run the task of the command line."""
    task = json.loads(sys.argv[1])
    if "cores" in task and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task["cores"]])
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed is no answer
    run, divide = (_run_torch if task.get("torch") else _run_jax)(task)
    run()  # compiled now
    elapsed = _seconds(run)
    unit = 2**30 if sys.platform == "darwin" else 2**20
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        if elapsed < SHORT:
            run()  # others had the caches in between
        elapsed = _seconds(run)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        answer = {"seconds": elapsed / divide, "peak_gigabytes": peak}
        print(json.dumps(answer), file=answers, flush=True)


def _seconds(run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
