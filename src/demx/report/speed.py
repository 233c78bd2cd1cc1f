"""The speed benchmark as a table for a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (
    ("estimate", "estimate, s"),
    ("plain_over_estimate", "  plain JAX ÷ ours"),
    ("plain_over_own_noise", "  the same, own noise"),
    ("torch_over_estimate", "  torch ÷ ours"),
    ("network", "network, s"),
    ("egnn_over_network", "  EGNN ÷ ours"),
    ("step", "inner step, s"),
    ("one_device_over_step", "  one device ÷ all"),
    ("one_core_over_step", "  one core ÷ all"),
    ("torch_over_step", "  torch ÷ ours"),
    ("sample", "samples, s"),
    ("samples", "  so many"),
    ("torch_over_sample", "  torch ÷ ours"),
    ("step_gigabytes", "peak of the step, GB"),
    ("torch_step_gigabytes", "  of torch, GB"),
)


def _show(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def show(found: dict[str, Any]) -> None:
    """Seconds are medians; ratios are how many times faster demx is."""
    console = Console()
    title = f"{found['cores']} cores, median of {found['repeats']}; a ÷ ours: times faster"
    table = Table(title=title)
    table.add_column("")
    begun = {name: row for name, row in found["targets"].items() if "estimate" in row}
    for name, row in begun.items():
        table.add_column(f"{name}\n{row['batch']} × {row['K']}", justify="right")
    for key, label in COLUMNS:
        values = [row.get(key) for row in begun.values()]
        if any(value is not None for value in values):
            table.add_row(label, *map(_show, values))
    if begun:
        console.print(table)
    if not found["torch"]:
        console.print("torch is not installed: no comparison with it")
    for name, row in found.get("native", {}).items():
        console.print(
            f"{name}, batch {row['batch']}, K {row['K']}: estimate {row['estimate']:.4f} s, "
            f"{row['estimate_over_native']:.2f} times the native limit of {row['native']:.4f} s"
        )
    if "growth" in found:
        table = Table(title="how cost grows: seconds at each size")
        for column in ("", "sizes", "seconds", "exponent"):
            table.add_column(column)
        for label, line in found["growth"].items():
            sizes, seconds = (" ".join(map(_show, line[k])) for k in ("sizes", "seconds"))
            table.add_row(label, sizes, seconds, _show(line["exponent"]))
        console.print(table)
