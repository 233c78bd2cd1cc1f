"""What demx finds on a machine: a place for what it can make again, and processor cores."""

import ctypes
import os
from pathlib import Path


def cache_directory() -> Path:
    """$DEMX_CACHE, or demx in $XDG_CACHE_HOME or ~/.cache."""
    if "DEMX_CACHE" in os.environ:
        return Path(os.environ["DEMX_CACHE"])
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"]) / "demx"
    return Path.home() / ".cache" / "demx"


def cores() -> int:
    """Cores this process may use: of the machine, by its affinity, and by a container's quota."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no container, or one without a quota ("max")
    return count


def return_memory() -> None:
    """From now on what compiling a program has freed goes back to the system (glibc only).

    The compiler's threads would otherwise keep it, each in a heap of its own that stays as large
    as it ever was. (One heap for all of them would be smaller still, but the devices would then
    wait for each other at every allocation.)
    """
    import jax.monitoring

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return  # another C library

    def compiled(event: str, seconds: float, **_) -> None:
        if event.endswith("backend_compile_duration") and seconds > 0.5:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(compiled)


def prepare_jax() -> None:
    """All cores as devices, and programs compiled once kept for the next run.

    By JAX's own environment variables, before it is imported; what is set already stays.
    """
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores()))
    try:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "compiled"))
    except RuntimeError:  # a user without a home: programs are not kept
        return
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
