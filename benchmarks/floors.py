"""Write docs/metrics.md's tables: diagnostics of the shipped reference sets, and all floors.

python benchmarks/floors.py            prints the tables
python benchmarks/floors.py --write    puts them into docs/metrics.md
"""

import sys
from pathlib import Path

from demx.config import build_target
from demx.evaluate import reference
from demx.evaluate.evaluation import batched_energies
from demx.report.tables import with_error

NAMES = ("gmm40", "dw4", "lj13", "lj55")
PUBLIC = {"dw4": "-22.45 ± 0.03", "lj13": "-43.06 ± 0.06", "lj55": "-325.0 ± 0.45"}
START, END = "<!-- made by benchmarks/floors.py -->", "<!-- end -->"


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))


def diagnostics() -> str:
    lines = []
    for name in NAMES:
        target = build_target(name, {})
        sets = reference.find(name, {}, target)
        for which in ("validation", "test"):
            x, about = getattr(sets, which), sets.provenance["sets"][which]
            energies = batched_energies(target, x)
            mean = with_error(float(energies.mean()), float(energies.std() / len(x) ** 0.5))
            if about["kind"] == "exact":
                lines.append([name, which, "exact", "", "", "", "", "", mean, ""])
                continue
            lines.append(
                [
                    name,
                    which,
                    f"tempering, {len(about['ladder'])} rungs",
                    f"{about['burn_in']:,}",
                    f"{about['tau']:.1f} / {about['thin']}",
                    f"{about['rhat_max']:.4f}",
                    f"{about['ess_min']:,.0f}",
                    with_error(about["virial_over_dof"], about["virial_standard_error"])
                    + f"; {about['starts_z']:.1f}",
                    mean,
                    PUBLIC[name],
                ]
            )
    header = ["target", "set", "made by", "burn-in", "τ / thinning", "max R-hat", "min ESS"]
    header += ["virial/dof; starts, σ", "mean energy", "public set"]
    return table(header, lines)


def floors() -> str:
    lines = []
    for name in NAMES:
        known = reference.find(name, {}, build_target(name, {})).provenance["floors"]
        for metric in known["1000"]:
            cells = [with_error(*known[n][metric]) if n in known else "" for n in ("1000", "2000")]
            lines.append([name, f"`{metric}`", *cells])
    return table(["target", "metric", "floor, n = 1000", "floor, n = 2000"], lines)


def main() -> None:
    text = f"{START}\n\n{diagnostics()}\n\n{floors()}\n\n{END}"
    if "--write" not in sys.argv:
        print(text)
        return
    path = Path(__file__).parent.parent / "docs" / "metrics.md"
    page = path.read_text()
    before, after = page.split(START)[0], page.split(END)[1]
    path.write_text(before + text + after)


if __name__ == "__main__":
    main()
