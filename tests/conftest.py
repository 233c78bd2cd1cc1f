"""Strict flags, a seed that is printed, and shape checks at run time."""

import os

# before JAX is imported: two workers share two cores
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_key_reuse", False)

install_import_hook("demx", "beartype.beartype")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="seed of the statistical tests")


@pytest.fixture
def seed(request) -> int:
    value = request.config.getoption("--seed")
    print(f"seed {value}: repeat with pytest --seed {value}")
    return value


@pytest.fixture
def key(seed):
    return jax.random.key(seed)
