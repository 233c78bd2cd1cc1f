"""Strict flags, a seed that is printed, shape checks at run time, and programs compiled once.

Most of the time of these tests is compilation. Each worker keeps its programs (also those of
commands it starts), in a place of its own: two processes must not write the same entry. And they
are compiled quickly rather than well, unless XLA_FLAGS is set (`make test-slow` sets it to
nothing); the runs that are killed and the ones on many devices compile as users do.
"""

import os
from pathlib import Path

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled" / WORKER
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
QUICKLY = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICKLY)

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

install_import_hook("demx", "checker.typecheck")


@pytest.fixture(scope="module", autouse=True)
def no_more_programs_than_needed():
    """A program is some mappings of memory, of which a process may only have 65 530."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and len(mappings.read_bytes().splitlines()) > 30_000:
        jax.clear_caches()


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the statistical tests")


@pytest.fixture
def seed(request) -> int:
    value = request.config.getoption("--seed")
    print(f"seed {value}: repeat with pytest --seed {value}")
    return value


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def key(seed):
    return jax.random.key(seed)
