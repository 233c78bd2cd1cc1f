"""One HTML file that loads nothing: styles, scripts and figures are inside."""

import html
import json
from collections.abc import Sequence
from importlib import resources

import numpy as np

CSS = (resources.files("demx.report") / "report.css").read_text()
VIEW = (resources.files("demx.report") / "view.js").read_text()
SHOWN = 40  # samples that a view steps through
# of the species, in turn; the sizes too, for those who cannot tell the colours apart
COLOURS = ((224, 129, 38), (74, 134, 216), (64, 158, 112), (196, 104, 160), (214, 184, 60))
SIZES = (1.0, 0.75, 1.2, 0.6, 0.9)


def document(title: str, parts: list[str]) -> str:
    body = "\n".join(parts)
    script = f"<script>{VIEW}</script>" if 'class="view"' in body else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head><body>"
        f"{body}{script}</body></html>"
    )


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind}' if kind else ''}>{html.escape(text)}</p>"


def figure(svg: str, caption: str = "") -> str:
    told = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{told}</figure>"


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def folded(title: str, *parts: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{''.join(parts)}</details>"


def view(
    x: np.ndarray, energies: np.ndarray, kinds: Sequence[int] = (), names: Sequence[str] = ()
) -> str:
    """Configurations (n, particles, 2 or 3) that turn, from the lowest energy to the highest.

    kinds: species of each particle, 0, 1, …, and what these are called; of one species empty.
    """
    order = np.argsort(energies)
    rows = order[np.unique(np.linspace(0, len(order) - 1, SHOWN).round().astype(int))]
    dim = x.shape[2]
    shown = np.zeros((len(rows), x.shape[1], 3))
    shown[..., :dim] = x[rows]
    apart = np.linalg.norm(shown[:, :, None] - shown[:, None], axis=-1)
    apart[:, *np.diag_indices(x.shape[1])] = np.inf
    nearest = float(np.median(apart.min(axis=2)))
    content = {
        "dim": dim,
        "reach": round(float(np.quantile(np.linalg.norm(shown, axis=2).max(axis=1), 0.9)), 3),
        "radius": round(0.36 * nearest, 3),
        "bond": round(1.35 * nearest, 3),
        "kinds": [kind % len(COLOURS) for kind in kinds or (0,) * x.shape[1]],
        "colours": COLOURS,
        "sizes": SIZES,
        "samples": shown.round(3).tolist(),
        "energies": [f"{energy:.4g}" for energy in energies[rows]],
    }
    data = json.dumps(content, separators=(",", ":"))
    last = len(rows) - 1
    return (
        '<div class="view"><canvas role="img"></canvas><div class="controls">'
        f'<input type="range" min="0" max="{last}" value="{last // 2}" aria-label="sample">'
        f'<output></output><button type="button">turn</button></div>{_legend(names)}'
        f'<script type="application/json">{data}</script></div>'
        "<noscript><p>The moving view needs JavaScript.</p></noscript>"
    )


def _legend(names: Sequence[str]) -> str:
    if not names:
        return ""
    balls = " ".join(
        f'<span><b style="color:rgb{COLOURS[i % len(COLOURS)]}">●</b> {html.escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<div class="legend">{balls}</div>'
