"""Commands that say how good samples are: evaluate, compare, reference."""

import math
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from demx.commands.options import Settings, correction, optional
from demx.commands.space import Dim, Shape, Species, Symmetry, introduce, options, space_of
from demx.errors import UserError

Target = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]


def evaluate(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")],
    /,
    target: Annotated[str | None, optional("TARGET")] = None,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    repeats: Annotated[int | None, optional("INT", "10; 1 of a slow black box")] = None,
    seed: int = 1,
    likelihood: Literal["auto", "native", "flow", "none"] = "auto",
    likelihood_n: int = 1000,
    mcmc: bool = False,
    mcmc_calls: Annotated[str | None, optional("CALLS", "2e7")] = None,
    reference: Annotated[str | None, optional("FILE")] = None,
    correct: Literal["none", "mala", "hmc", "smc"] = "none",
    correct_steps: Annotated[int | None, optional("INT", "300")] = None,
    dim: Dim = None,
    shape: Shape = None,
    symmetry: Symmetry = "none",
    species: Species = None,
    set: Settings = (),
    json: bool = False,
) -> None:
    """Say how good samples are: every metric beside its floor, and a verdict in words.

    Of a run directory, fresh samples are drawn; of a file (npz, npy, extxyz, nc), all its
    samples are taken. The floor is what perfect samples get: the same metric between two
    independent reference sets.

    Args:
        what: a run directory, or a file of samples.
        target: whose samples a file holds: a name from `demx list`, or FILE.py:NAME.
        n: size of one block of samples.
        repeats: blocks drawn from a run; standard errors come from their spread. Of an energy
            that JAX cannot compile, whose calls the samples take, one block is drawn.
        seed: of the samples.
        likelihood: densities for NLL, ESS and log Z: the sampler's own (native), an OT-CFM
            flow trained on the samples as in the paper (flow), or none; auto is native for runs
            of up to 16 dimensions. With --correct smc, native are the weights of its particles;
            with mala and hmc they are of the uncorrected samples, and auto leaves them out.
        likelihood_n: how many samples the densities are evaluated at.
        mcmc: add a column of what tuned parallel tempering gets for the energy calls that training
            and the samples took, never for more; below 18,240 it is left out.
        mcmc_calls: most calls for that column (of a file: as many).
        reference: a file made by `demx reference -o`, instead of the one demx would find.
        correct: correct the samples of a run before they are judged, as in `demx sample`.
        correct_steps: gradient steps of mala or hmc for each sample.
        dim: dimension of x, for an energy function on R^dim.
        shape: shape of x, for an energy function of particles: 13,3 are 13 in space.
        symmetry: particles: free to move and turn together, and to be exchanged.
        species: a number for each particle, 0,0,1,1,1; only equal ones can be exchanged.
        set: a setting of the target of a file, such as target.num_particles=7.
        json: print JSON instead of a table.
    """
    from demx import api, assessment, samples
    from demx.report import tables
    from demx.resolve import opening_calls

    if n < 10 or (repeats is not None and repeats < 1):
        raise UserError(
            "expected -n of at least 10 and --repeats of at least 1, "
            f"got {n} and {10 if repeats is None else repeats}"
        )
    if mcmc_calls is not None and not mcmc:
        raise UserError("--mcmc-calls: only with --mcmc, which adds the column that they are for")
    calls = _energy_calls("2e7" if mcmc_calls is None else mcmc_calls) if mcmc else 0
    ruler = None if reference is None else Path(reference)
    if not Path(what).exists():
        raise UserError(
            f"{what}: not a run directory, and not a file of samples: there is nothing of that name"
        )
    if Path(what).is_dir():
        where = space_of(dim, shape, symmetry, species)
        if target is not None or set or where:
            raise UserError(
                "--target, --dim, --shape, --species, --set: only for a file; a run knows its own"
            )
        fitted = api.load(what)
        found = fitted.evaluate(
            n, repeats=repeats, seed=seed, likelihood=likelihood, likelihood_n=likelihood_n,
            mcmc_at_most=calls, reference=ruler,
            **correction(correct, correct_steps),
        )  # fmt: skip
        opening = found.samples.energy_calls + opening_calls(fitted.config, fitted.target)
        found = found._replace(samples=found.samples._replace(energy_calls=opening))
        about = tables.About.of_run(fitted)
    else:
        if correct != "none" or correct_steps is not None or repeats is not None:
            raise UserError(
                "--correct, --correct-steps, --repeats: only for a run; a file is judged as it is, "
                "in as many blocks of -n as it has"
            )
        if target is None:
            raise UserError(f"{what}: name the target of these samples with --target")
        found = assessment.assess(
            target, samples.read(Path(what)), n=n, seed=seed, likelihood=likelihood,
            likelihood_n=likelihood_n, mcmc_calls=calls, reference=ruler, settings=set,
            **space_of(dim, shape, symmetry, species),
        )  # fmt: skip
        about = tables.About(target, Path(what).name)
    print(tables.as_json(about, found)) if json else tables.show(about, found)


def _energy_calls(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number < math.inf:
        raise UserError(
            f"--mcmc-calls: expected a number of energy calls such as 2e7, got {text!r}"
        )
    return int(number)


def compare(
    target: Target,
    /,
    methods: str,
    budget: Annotated[str | None, optional("BUDGET")] = None,
    directory: Annotated[str | None, optional("DIRECTORY", "runs/compare-TARGET")] = None,
    seed: int = 0,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    repeats: int = 5,
    scale: Annotated[float | None, optional("FLOAT", "probed")] = None,
    dim: Dim = None,
    shape: Shape = None,
    symmetry: Symmetry = "none",
    species: Species = None,
    set: Settings = (),
) -> None:
    """Train, sample and evaluate several methods on one target; write one page.

    Every method runs alone, in processes of its own; the same command goes on where it stopped.

    Args:
        target: a name from `demx list`, or FILE.py:NAME as in `demx fit`.
        methods: names with commas between them, such as idem,smc,hmc.
        budget: of each method's training, as in `demx fit`.
        directory: where runs and page are kept.
        seed: of every method.
        n: size of one block of samples.
        repeats: blocks; standard errors come from their spread.
        scale: rough width of the target's mass, where there is no preset.
        dim: dimension of x, for an energy function on R^dim.
        shape: shape of x, for an energy function of particles: 13,3 are 13 in space.
        symmetry: particles: free to move and turn together, and to be exchanged.
        species: a number for each particle, 0,0,1,1,1; only equal ones can be exchanged.
        set: change a setting of the target, such as target.num_particles=7.
    """
    from demx import comparison, source
    from demx.report import comparison as page
    from demx.resolve import open_target
    from demx.ruler import target_settings

    if n < 10 or repeats < 1:
        raise UserError(
            f"expected -n of at least 10 and --repeats of at least 1, got {n} and {repeats}"
        )
    place = Path(directory or f"runs/compare-{source.slug(target)}")
    introduce(target)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    space, about = options(dim, shape, symmetry, species, scale), target_settings(set)
    # what no method could be trained on is told once, before any process begins
    opened = open_target(target, about, look=False, **space_of(dim, shape, symmetry, species))
    rows = comparison.compare(
        target, names, place, budget=budget, seed=seed, n=n, repeats=repeats, space=space,
        settings=set, report=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    page.show(target, rows)
    given = [*space, *comparison.as_options(set)]
    print(page.write(target, opened, rows, place / "compare.html", settings=about, given=given))
    if all(row.error for row in rows):
        sys.exit(1)


def reference(
    target: Target,
    /,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 10000,
    output: Annotated[
        str | None, optional("FILE", "the user's cache, where `demx evaluate` looks", "-o")
    ] = None,
    seed: int = 0,
    scale: float = 1.0,
    chains: int = 64,
    max_rungs: int = 16,
    beta_min: float = 0.05,
    leapfrog: int = 8,
    warm_start: Annotated[str | None, optional("FILE")] = None,
    dim: Dim = None,
    shape: Shape = None,
    symmetry: Symmetry = "none",
    species: Species = None,
    set: Settings = (),
) -> None:
    """Make near-exact reference samples: two independent sets with what vouches for them.

    Exact where the target can be drawn from; otherwise parallel tempering with HMC moves,
    burn-in and thinning from measured autocorrelation, until R-hat, the virial identity and
    the agreement of compact and dispersed starts are met. Exit code 1 if they are not.

    Args:
        target: a name from `demx list`, or FILE.py:NAME as in `demx fit`.
        n: samples in each of the two sets.
        output: npz file for them.
        seed: all randomness follows from it.
        scale: rough width of the target's mass.
        chains: independent ensembles side by side.
        max_rungs: most temperatures of an ensemble.
        beta_min: lowest inverse temperature; closer to 1 is cheaper where barriers are low.
        leapfrog: steps of one HMC move.
        warm_start: npz, npy, extxyz or nc file of points to begin from, in turn: half of the
            ensembles at the points, half after moves at the lowest inverse temperature. Starts
            then agree about what can be reached from there, no more. Without it ensembles of an
            ASE or OpenMM structure begin there.
        dim: dimension of x, for an energy function on R^dim.
        shape: shape of x, for an energy function of particles: 13,3 are 13 in space.
        symmetry: particles: free to move and turn together, and to be exchanged.
        species: a number for each particle, 0,0,1,1,1; only equal ones can be exchanged.
        set: change a setting of the target, such as target.num_particles=7.
    """
    from demx import ruler, samples
    from demx.report import tables

    if n < 100:
        raise UserError(f"n: expected at least 100, got {n}")
    introduce(target)
    made, path = ruler.reference(
        target, n=n, output=output, seed=seed, settings=set,
        report=lambda text: print(text, file=sys.stderr, flush=True),
        scale=scale, num_chains=chains, max_rungs=max_rungs, beta_min=beta_min,
        num_leapfrog=leapfrog,
        warm_start=None if warm_start is None else samples.read(Path(warm_start)),
        **space_of(dim, shape, symmetry, species),
    )  # fmt: skip
    tables.show_reference(target, made, path)
    if not made.passed:
        sys.exit(1)
