"""Whole numbers as users hand them over, Python's, NumPy's or JAX's: as int, or refused at once.

What is no int of Python cannot be written to TOML or JSON, and that would show when all is done.
"""

import operator
from typing import Any

from demx.errors import UserError

SEEDS = 2**32  # JAX's keys take the last 32 bits: 2**32 would silently be 0 once more


def whole(name: str, value: Any, least: int) -> int:
    """value, if it is a whole number of at least `least`."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise UserError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return found


def wholes(name: str, values: Any, wanted: str) -> tuple[int, ...]:
    """values, if they are whole numbers, one after the other."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise UserError(f"{name}: expected {wanted}, got {values!r}") from error


def check_seed(value: Any) -> int:
    """value, if 0 ≤ value < 2**32."""
    try:
        found = operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < SEEDS:
        raise UserError(
            f"seed: expected a whole number from 0 to {SEEDS - 1}, got {value}; others would be "
            "one of these again"
        )
    return found
