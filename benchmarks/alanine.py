"""Alanine dipeptide: φ and ψ by idem, HMC and parallel tempering at equal energy calls.

    python benchmarks/alanine.py --plot docs/alanine.png

All begin from one structure, that of the PDB file: chains there, idem with it in its buffer. With
--anywhere they begin with atoms anywhere (normal, 3 Å wide), and know nothing but the energy. A
longer run of parallel tempering with another seed is the ruler, always from the structure. Mirror
images are taken as L. Printed for each: energy calls with those of drawing samples, the median
energy in kT, the share of samples with both peptide bonds trans, and the total variation between
the histogram of (φ, ψ) in cells of 30° and the ruler's; beside it that of the ruler's two halves,
half of its ensembles against the others, below which nothing can be told. Samples are kept in
runs/alanine, and what is there already is not made again; --methods leaves some out. Needs OpenMM.
"""

import argparse
import dataclasses
import importlib.util
import time
import warnings
from pathlib import Path

import numpy as np

import demx
from demx.energy import energies
from demx.evaluate.observables import observable

KEPT = Path("runs/alanine")
SCALE = 1.6  # Å
CELLS = np.linspace(-180, 180, 13)
OMEGA = "dihedral:0,4,6,8", "dihedral:8,14,16,18"
CHAINS, RUNGS, LEAPFROG = 4, 10, 16
SETTINGS = {
    # the recipe as it is takes a million calls for one outer loop; this is a small one
    "idem": {
        "training": {"inner_steps": 50, "batch_size": 32, "new_samples": 32, "outer_steps": 1000},
        "walk": {"num_moves": 2, "num_leapfrog": 4},
        "moves": {"num_steps": 10},
    },
    "hmc": {
        "sampler": {
            "num_chains": 16, "num_leapfrog": LEAPFROG, "length": 10, "thin": 1,
            "outer_steps": 100_000,
        },
    },
    "tempering": {
        "sampler": {
            "num_chains": CHAINS, "num_rungs": RUNGS, "beta_min": 0.1, "num_leapfrog": LEAPFROG,
            "length": 10, "thin": 1, "outer_steps": 100_000,
        },
    },
}  # fmt: skip
CALLS_A_SAMPLE = {"idem": 0, "hmc": LEAPFROG, "tempering": RUNGS * LEAPFROG}


def alanine():
    path = Path(__file__).parents[1] / "examples" / "openmm_alanine.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(method: str, target, calls: int, seed: int) -> np.ndarray:
    """Samples in the order they were drawn: half of the calls to tune, the rest to draw."""
    begin = "anywhere" if target.start is None else "structure"
    kept = KEPT / f"{method}-{calls}-seed{seed}-{begin}.npy"
    if kept.exists():
        return np.load(kept)
    start, before = time.perf_counter(), target.calls
    each = CALLS_A_SAMPLE[method]
    budget = calls // 2 if each else calls
    settings = SETTINGS[method] | {"evaluation": {"every": 0}}
    with warnings.catch_warnings(record=True) as told:  # trajectories that fly apart
        warnings.simplefilter("always")
        sampler = demx.fit(
            target, method=method, scale=SCALE, seed=seed, budget=f"{budget}calls",
            settings=settings, warm_start=target.start, progress=False,
        )  # fmt: skip
    left = calls - (target.calls - before)
    x = np.asarray(sampler.sample(max(left // each, 64) if each else 200, seed=seed).x)
    print(
        f"{method}, seed {seed}, from {begin}: {target.calls - before:,} calls, {len(x)} samples, "
        f"{time.perf_counter() - start:.0f} s",
        *(str(one.message) for one in told), sep="; ", flush=True,
    )  # fmt: skip
    KEPT.mkdir(parents=True, exist_ok=True)
    np.save(kept, x)
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=60_000)
    parser.add_argument("--reference-calls", type=int, default=240_000)
    parser.add_argument("--methods", default=",".join(SETTINGS))
    parser.add_argument("--anywhere", action="store_true")
    parser.add_argument("--plot")
    options = parser.parse_args()
    example = alanine()
    target = example.alanine()

    def named(name, x):
        return observable(name, target.space)(x, None)

    def angles(x):
        """(φ, ψ) of the L form, (n, 2)."""
        both = np.stack([named(example.PHI, x), named(example.PSI, x)], axis=1)
        return both * np.sign(named(example.HAND, x))[:, None]

    def shares(found):
        counts, _, _ = np.histogram2d(*found.T, bins=(CELLS, CELLS))
        return counts / counts.sum()

    def variation(one, other):
        return 0.5 * np.abs(shares(one) - shares(other)).sum()

    ruler = run("tempering", target, options.reference_calls, seed=1)
    begun = dataclasses.replace(target, start=None) if options.anywhere else target
    methods = options.methods.split(",")
    drawn = {"ruler": ruler} | {m: run(m, begun, options.calls, seed=0) for m in methods}
    drawn = {name: x[np.isfinite(x).all(axis=(1, 2))] for name, x in drawn.items()}
    found = {name: angles(x) for name, x in drawn.items()}
    ensemble = np.arange(len(ruler)) % CHAINS
    halves = found["ruler"][ensemble < CHAINS // 2], found["ruler"][ensemble >= CHAINS // 2]
    floor, off = variation(*halves), {}
    for name, x in drawn.items():
        trans = np.mean([np.abs(named(one, x)) > 90 for one in OMEGA], axis=0) == 1
        off[name] = variation(found[name], found["ruler"])
        print(
            f"{name}: median energy {np.median(energies(target, x)):.4g} kT, trans "
            f"{trans.mean():.2f}, φ < 0 {np.mean(found[name][:, 0] < 0):.2f}, "
            f"tv {off[name]:.3f} (floor {floor:.3f})"
        )
    del off["ruler"]
    best, *others = sorted(off, key=off.get)
    for other in others:
        clear = off[other] - off[best] > floor
        words = "is nearer to the ruler than" if clear else "cannot be told from"
        print(f"{best} {words} {other}: {off[best]:.3f} and {off[other]:.3f}, floor {floor:.3f}")
    if options.plot:
        plot(options.plot, found)


def plot(path: str, found: dict[str, np.ndarray]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(3 * len(found), 3.2), sharey=True)
    for ax, (name, both) in zip(axes, found.items(), strict=True):
        ax.hist2d(*both.T, bins=60, range=[[-180, 180]] * 2, cmap="magma_r", cmin=1)
        ax.set(title=name, xlabel="φ", xticks=[-180, 0, 180], yticks=[-180, 0, 180], aspect=1)
    axes[0].set_ylabel("ψ")
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
