"""Commands that make and use runs: fit, sample, report, list."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from demx.commands.options import Settings, correction, optional
from demx.commands.space import Dim, Shape, Species, Symmetry, introduce, space_of
from demx.errors import UserError

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def fit(
    target: Target,
    /,
    method: str = "idem",
    seed: int = 0,
    budget: Annotated[str | None, optional("BUDGET")] = None,
    directory: Annotated[str | None, optional("DIRECTORY", "runs/TARGET-METHOD-seedSEED")] = None,
    scale: Annotated[float | None, optional("FLOAT", "probed")] = None,
    recipe: bool = False,
    dim: Dim = None,
    shape: Shape = None,
    symmetry: Symmetry = "none",
    species: Species = None,
    set: Settings = (),
    warm_start: Annotated[str | None, optional("FILE")] = None,
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
        budget: stop when the run has taken this much in all, such as 90s, 10m, 2h or
            5e6calls; the probe of the energy and compilation count, and an outer loop that has
            begun is finished (of a black box only if that takes no more than a tenth of the
            budget longer).
        directory: where the run is kept.
        scale: rough width of the target's mass, where there is no preset.
        recipe: settings from a probe of the energy, also where there is a preset.
        dim: dimension of x, for an energy function on R^dim.
        shape: shape of x, for an energy function of particles: 13,3 are 13 in space.
        symmetry: particles: free to move and turn together, and to be exchanged.
        species: a number for each particle, 0,0,1,1,1; only equal ones can be exchanged.
        set: change a setting, such as training.batch_size=64; may be given many times.
        warm_start: npz, npy, extxyz or nc file of points to begin from. Chains (metropolis,
            mala, hmc, nuts, tempering) begin at its rows in turn, again from the first if there
            are fewer rows than chains; idem and pdem put them into the buffer; other methods
            refuse them. Without it chains of an ASE or OpenMM structure begin there.
        checkpoint_seconds: how much work a kill may cost.
        quiet: no progress.
    """
    from demx import api, config, machine, source
    from demx.pace import cost

    machine.return_memory()
    directory = directory or f"runs/{source.slug(target)}-{method}-seed{seed}"
    if not quiet:
        introduce(target)
    start = None
    if warm_start is not None:
        from demx import samples

        start = samples.read(Path(warm_start))
    fitted = api.fit(
        target,
        method=method,
        seed=seed,
        budget=budget,
        directory=directory,
        scale=scale,
        recipe=recipe,
        **space_of(dim, shape, symmetry, species),
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
    if p.given_up_calls:
        print(
            f"{p.given_up_calls:,} more calls were made in loops that were given up, and are done "
            "again when the run goes on"
        )
    if unasked := getattr(fitted.target, "unasked", 0):
        print(
            f"{unasked:,} calls were at points that are not finite: the function did not see them"
        )
    if failed := getattr(fitted.target, "failed", 0):
        print(f"{failed:,} calls failed: the function raised what it was said to raise")
    if (each := getattr(fitted.target, "calls_per_point", 1)) > 1:
        print(f"an energy call is {each} calls of the function, for finite differences")
    if (said := cost(fitted.target, fitted.calls_of(1000) or 0)) and fitted.calls_of(1000):
        print(f"1000 samples of it take {said}")
    if fitted.ended == "converged":
        print(f"converged: no progress in {fitted.config['stopping']['patience']} looks")
    if p.kept < p.step:
        why = "the last that was looked at" if p.watch.good else "later ones were clearly worse"
        print(f"kept: the state of loop {p.kept}; {why}")
    if fitted.ended == "interrupted":
        print("interrupted: the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def sample(
    run: Run,
    /,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    to: Annotated[
        str | None, optional("FILE", "samples.npz in the run directory", "-o", "--output")
    ] = None,
    seed: int = 0,
    weights: bool = False,
    correct: Literal["none", "mala", "hmc", "smc"] = "none",
    correct_steps: Annotated[int | None, optional("INT", "300")] = None,
    chunk: int = 4096,
) -> None:
    """Draw samples from a run into a file: any number of them, in bounded memory.

    Args:
        run: a run directory.
        n: how many.
        to: .npz, .extxyz (particles), .nc (ArviZ) or .csv (a summary with standard errors),
            with energies, weights and densities where they are known, and where they come from.
        seed: the same seed gives the same samples.
        weights: importance weights. Of idem and pdem the samples are then those of the
            probability-flow ODE, with their densities; of pis, dds and dis the weights are those
            of the paths. importance, ais and smc have them anyway; chains, nested and rdmc
            have none.
        correct: mala and hmc move every sample near where it is; smc anneals weighted
            particles along the learned noise levels, which repairs mode weights too.
        correct_steps: gradient steps of mala or hmc for each sample.
        chunk: how many are in memory at once; the samples are the same whatever it is.
    """
    from demx import api
    from demx.display import with_error
    from demx.resolve import opening_calls

    how = correction(correct, correct_steps)
    fitted = api.load(run)
    written = fitted.sample_to(
        Path(to) if to else Path(run) / "samples.npz", n, seed=seed, chunk=chunk, weights=weights,
        **how,
    )  # fmt: skip
    for caveat in fitted.caveats():
        print(caveat)
    if written.bad_calls:
        print(f"{written.bad_calls:,} energies on the way were not finite")
    if written.acceptance is not None:
        print(f"acceptance of the moves {written.acceptance:.2f}")
    if (z := written.log_z) is not None:
        print(f"log Z = {with_error(z.value, z.standard_error)}")
        if z.of_weights:
            print(f"{z.of_weights}; {z.bad} without a finite density")
        if zero := getattr(fitted.target, "zero", 0.0):
            print(f"energies are counted from {zero:.9g} kT: of the energy itself log Z = "
                  f"{z.value - zero:.9g}")  # fmt: skip
    if written.no_log_z:
        print(f"no log Z: {written.no_log_z}")
    if written.told:
        print(written.told)
    print(
        f"{written.path}: {n} samples, {written.bad} with an energy that is not finite, "
        f"{written.energy_calls + opening_calls(fitted.config, fitted.target):,} energy calls"
    )


def report(
    run: Run,
    /,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    samples: Annotated[str | None, optional("FILE", "new ones are drawn")] = None,
    coordinate: Annotated[str | None, optional("NAME")] = None,
) -> None:
    """Write report.html into a run directory: one file to open in a browser.

    Args:
        run: a run directory.
        n: size of one block of samples for the metrics.
        samples: a file that `demx sample` has written, to show and judge instead of new samples.
        coordinate: what the free energy is shown along: energy, norm, x0 (the default), x1, …; of
            particles also radius_of_gyration (the default), smallest_distance, mean_distance,
            largest_distance, distance:0,1 of the first two, and in space dihedral:i,j,k,l of four;
            of a NumPyro model its sites, such as mean or shift[0].
    """
    from demx.report import html

    if n < 10:
        raise UserError(f"expected -n of at least 10, got {n}")
    path, verdict = html.write(Path(run), n, coordinate, None if samples is None else Path(samples))
    print(*verdict, path, sep="\n")


def list_() -> None:
    """List targets, methods, and what the sections of a configuration can be."""
    from demx.report import tables

    tables.show_registries()
