"""Strict flags, a seed that is printed, and shape checks at run time."""

import jax
import numpy as np
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

install_import_hook("demx", "checker.typecheck")


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
