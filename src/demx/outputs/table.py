"""CSV: a summary of samples, one line an observable, with what it was made by in comments."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from demx.errors import UserError
from demx.evaluate import weights
from demx.evaluate.observables import measured
from demx.evaluate.summary import PROBABILITIES, summarise
from demx.outputs import Columns
from demx.outputs.spool import Turned
from demx.types import Target

HEADER = ["quantity", "n", "bad"]
for _name in ("mean", "sd", *(f"q{100 * p:02.0f}" for p in PROBABILITIES)):
    HEADER += [_name, f"{_name}_se"]


def write(
    path: Path,
    chunks: Iterable[Columns],
    n: int,
    target: Target,
    provenance: Callable[[], dict[str, Any]],
) -> None:
    named, names = getattr(target, "named", None), []
    kept: dict[str, list[np.ndarray]] = {"log_weight": [], "island": []}
    with Turned(path, n) as turned:
        for columns in chunks:
            values = measured(columns["x"], columns["energy"], target.space, named)
            names = [*values]
            turned.add([*values.values()])
            for name, parts in kept.items():
                parts += [columns[name]] if name in columns else []
        log_weight, island = (np.concatenate(p) if p else None for p in kept.values())
        about = provenance() | _of_weights(log_weight, island)
        with path.open("w", encoding="utf-8", newline="") as file:
            for name, value in about.items():
                text = value if isinstance(value, str) else json.dumps(value)
                file.write(f"# {name}: {' '.join(text.splitlines())}\n")
            lines = csv.writer(file)
            lines.writerow(HEADER)
            for i, name in enumerate(names):
                lines.writerow(_line(name, turned.column(i), log_weight, island))


def _line(name: str, values: np.ndarray, log_weight, island) -> list[str]:
    try:
        found = summarise(values, log_weight, island)
    except ValueError as error:
        raise UserError(f"{name}: there is nothing to summarise ({error})") from error
    pairs = (found.mean, found.sd, *found.quantiles.values())
    numbers = [f"{number:.9g}" for pair in pairs for number in pair]
    return [name, str(found.n), str(found.bad), *numbers]


def _of_weights(log_weight: np.ndarray | None, island: np.ndarray | None) -> dict[str, Any]:
    """What the weights say of themselves; too few of them say nothing."""
    if (
        log_weight is None
        or len(log_weight) < weights.FEWEST_FOR_K
        or not np.isfinite(log_weight).any()
    ):
        return {}
    log_z = weights.log_z_is(log_weight, island)
    return {
        "effective_share": f"{weights.ess(log_weight).value:.6g}",
        "psis_k": f"{weights.psis_k(log_weight).value:.6g}",
        "log_z": f"{log_z.value:.8g} ± {log_z.standard_error:.3g}",
    }
