"""Numbers with their errors as text, and small tables of them, for a terminal and a notebook."""

import html
import math
from collections.abc import Sequence

ROUNDING = 1e-7  # of the value, in single precision


def number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def with_error(value: float | None, error: float | None) -> str:
    """4.53 ± 0.08: the value to the digit that its error can tell; an error that rounding alone
    would make is none."""
    if value is None:
        return ""
    if not error or not math.isfinite(error) or not math.isfinite(value):
        return number(value)
    if error < ROUNDING * abs(value):
        return number(value)
    leading = math.floor(math.log10(error))
    # one digit of the error, two where the first is a 1
    digits = max(0, (1 if error < 2 * 10**leading else 0) - leading)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def text_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width under a title; the first is to the left, as are all with letters."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [title]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def html_table(rows: Sequence[Sequence[str]], header: bool = True, title: str = "") -> str:
    """The same for a page; `header`: the first row is one."""
    lines = [f"<caption>{html.escape(title)}</caption>"] if title else []
    for i, row in enumerate(rows):
        tag = "th" if header and i == 0 else "td"
        lines.append(
            "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
        )
    return f"<table>{''.join(lines)}</table>"
