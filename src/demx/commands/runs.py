"""Commands that make and use runs: fit, sample, report, list."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from demx.commands.space import Symmetry, introduce, space_of
from demx.errors import UserError

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def fit(
    target: Target,
    /,
    method: str = "idem",
    seed: int = 0,
    budget: str | None = None,
    directory: str | None = None,
    scale: float | None = None,
    recipe: bool = False,
    dim: int | None = None,
    shape: str | None = None,
    symmetry: Symmetry = "none",
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    warm_start: str | None = None,
    checkpoint_seconds: float = 15.0,
    quiet: bool = False,
) -> None:
    """Train a sampler on a target, or go on with a run that was interrupted.

    The same command resumes: what an uninterrupted run would have given, to the bit.

    Args:
        target: a name from `demx list`, or FILE.py:NAME: an energy function of one
            configuration, a Target, or a function that returns one.
        method: a name from `demx list`.
        seed: all randomness of the run follows from it.
        budget: stop when the run has trained this much in all, such as 90s, 10m, 2h or
            5e6calls; compilation counts, and an outer loop that has begun is finished.
        directory: where the run is kept (default: runs/TARGET-METHOD-seedSEED).
        scale: rough width of the target's mass, where there is no preset (default: probed).
        recipe: settings from a probe of the energy, also where there is a preset.
        dim: of an energy function on R^dim.
        shape: of an energy function's argument, such as 13,3.
        symmetry: particles: of that shape, free to move, turn and be exchanged.
        set: change a setting, such as training.batch_size=64; may be given many times.
        warm_start: npz, npy or extxyz file of existing samples to fill the buffer with.
        checkpoint_seconds: how much work a kill may cost.
        quiet: no progress.
    """
    from demx import api, config, source

    directory = directory or f"runs/{source.slug(target)}-{method}-seed{seed}"
    if not quiet:
        introduce(target)
    start = None
    if warm_start is not None:
        from demx import samples

        start = samples.read(Path(warm_start)).x
    fitted = api.fit(
        target,
        method=method,
        seed=seed,
        budget=budget,
        directory=directory,
        scale=scale,
        recipe=recipe,
        **space_of(dim, shape, symmetry),
        settings=config.parse_set(set),
        warm_start=start,
        progress=not quiet,
        checkpoint_seconds=checkpoint_seconds,
    )
    p = fitted.progress
    total = fitted.method.outer_steps
    print(
        f"{directory}: {p.step} of {total} outer loops, {p.energy_calls:,} energy calls "
        f"({p.evaluation_calls:,} more to watch it), {p.seconds:.0f} s of training"
    )
    if fitted.ended == "converged":
        print(f"converged: no progress in {fitted.config['stopping']['patience']} looks")
    if p.kept < p.step:
        print(f"kept: the state of loop {p.kept}; later ones were clearly worse")
    if fitted.ended == "interrupted":
        print("interrupted: the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def sample(
    run: Run,
    /,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    output: Annotated[str | None, tyro.conf.arg(aliases=["-o"])] = None,
    seed: int = 0,
    weights: bool = False,
    correct: Literal["none", "mala", "hmc", "smc"] = "none",
    correct_steps: int = 300,
) -> None:
    """Draw samples from a run.

    Args:
        run: a run directory.
        n: how many.
        output: npz file (default: samples.npz in the run directory); holds x, energy,
            and log_weight, log_prob, island where they are known.
        seed: the same seed gives the same samples.
        weights: draw from the probability-flow ODE, with importance weights and densities.
        correct: mala and hmc move every sample near where it is; smc anneals weighted
            particles along the learned noise levels, which repairs mode weights too.
        correct_steps: gradient steps of mala or hmc for each sample.
    """
    import numpy as np

    from demx import api
    from demx import samples as files
    from demx.evaluate.evaluation import batched_energies
    from demx.resolve import opening_calls

    fitted = api.load(run)
    path = Path(output) if output else Path(run) / "samples.npz"
    if path.suffix != ".npz":
        raise UserError(f"{path}: expected a name that ends in .npz")
    kind = None if correct == "none" else correct
    samples = fitted.sample(
        n, seed=seed, weights=weights, correct=kind, correct_steps=correct_steps
    )
    energy = batched_energies(fitted.target, np.asarray(samples.x))
    files.write(path, samples, energy)
    if samples.bad_calls:
        print(f"{samples.bad_calls:,} energies on the way were not finite")
    if samples.acceptance is not None:
        print(f"acceptance of the moves {samples.acceptance:.2f}")
    if samples.log_weight is not None:
        z = api.log_z(samples)
        print(
            f"log Z = {z.value:.4g} ± {z.standard_error:.2g}, effective share of the weights "
            f"{z.ess:.3g}, {z.bad} without a finite density"
        )
    calls = samples.energy_calls + n + opening_calls(fitted.config)
    bad = int((~np.isfinite(energy)).sum())
    print(f"{path}: {n} samples, {bad} with an energy that is not finite, {calls:,} energy calls")


def report(run: Run, /, n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000) -> None:
    """Write report.html into a run directory: one file to open in a browser.

    Args:
        run: a run directory.
        n: size of one block of samples for the metrics.
    """
    from demx.report import html

    if n < 10:
        raise UserError(f"expected -n of at least 10, got {n}")
    print(html.write(Path(run), n))


def list_() -> None:
    """List targets, methods, and what the sections of a configuration can be."""
    from demx.report import tables

    tables.show_registries()
