"""The command `demx`. Nothing heavy is imported before a command has been chosen."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from demx import __version__
from demx.bench.command import bench
from demx.errors import Diverged, UserError
from demx.machine import prepare_jax

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
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    warm_start: str | None = None,
    checkpoint_seconds: float = 15.0,
    quiet: bool = False,
) -> None:
    """Train a sampler on a target, or go on with a run that was interrupted.

    The same command resumes: what an uninterrupted run would have given, to the bit.

    Args:
        target: a name from `demx list`.
        method: a name from `demx list`.
        seed: all randomness of the run follows from it.
        budget: stop when the run has trained this much in all, such as 90s, 10m, 2h or
            5e6calls; compilation counts, and an outer loop that has begun is finished.
        directory: where the run is kept (default: runs/TARGET-METHOD-seedSEED).
        scale: rough width of the target's mass, where there is no preset (default: probed).
        recipe: settings from a probe of the energy, also where there is a preset.
        set: change a setting, such as training.batch_size=64; may be given many times.
        warm_start: npz, npy or extxyz file of existing samples to fill the buffer with.
        checkpoint_seconds: how much work a kill may cost.
        quiet: no progress.
    """
    from demx import api, config

    directory = directory or f"runs/{target}-{method}-seed{seed}"
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
        settings=config.parse_set(set),
        warm_start=start,
        progress=not quiet,
        checkpoint_seconds=checkpoint_seconds,
    )
    p = fitted.progress
    total = fitted.method.outer_steps
    print(
        f"{directory}: {p.step} of {total} outer loops, {p.energy_calls:,} energy calls, "
        f"{p.seconds:.0f} s of training"
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
    calls = samples.energy_calls + n
    bad = int((~np.isfinite(energy)).sum())
    print(f"{path}: {n} samples, {bad} with an energy that is not finite, {calls:,} energy calls")


def evaluate(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")],
    /,
    target: str | None = None,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1000,
    repeats: int = 10,
    seed: int = 1,
    likelihood: Literal["auto", "native", "flow", "none"] = "auto",
    likelihood_n: int = 1000,
    mcmc: bool = False,
    mcmc_calls: str = "2e7",
    reference: str | None = None,
    correct: Literal["none", "mala", "hmc", "smc"] = "none",
    correct_steps: int = 300,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    json: bool = False,
) -> None:
    """Say how good samples are: every metric beside its floor, and a verdict in words.

    Of a run directory, fresh samples are drawn; of a file (npz, npy, extxyz), all its
    samples are taken. The floor is what perfect samples get: the same metric between two
    independent reference sets.

    Args:
        what: a run directory, or a file of samples.
        target: whose samples a file holds: a name from `demx list`.
        n: size of one block of samples.
        repeats: blocks drawn from a run; standard errors come from their spread.
        seed: of the samples.
        likelihood: densities for NLL, ESS, log Z and k̂: the sampler's own (native), an OT-CFM
            flow trained on the samples as in the paper (flow), or none; auto is native for runs
            of up to 16 dimensions.
        likelihood_n: how many samples the densities are evaluated at.
        mcmc: add a row of what tuned parallel tempering gets for the same energy calls.
        mcmc_calls: at most so many calls for that row (of a file: so many).
        reference: a file made by `demx reference -o`, instead of the one demx would find.
        correct: correct the samples of a run before they are judged, as in `demx sample`.
        correct_steps: gradient steps of mala or hmc for each sample.
        set: a setting of the target of a file, such as target.num_particles=7.
        json: print JSON instead of a table.
    """
    from demx import api, assessment, samples
    from demx.report import tables
    from demx.train import parse_budget

    if n < 10 or repeats < 1:
        raise UserError(
            f"expected -n of at least 10 and --repeats of at least 1, got {n} and {repeats}"
        )
    calls = int(parse_budget(f"{mcmc_calls}calls").energy_calls) if mcmc else 0
    ruler = None if reference is None else Path(reference)
    if Path(what).is_dir() or not Path(what).suffix:
        if target is not None or set:
            raise UserError("--target, --set: only for a file; a run knows its target")
        fitted = api.load(what)
        spent = fitted.progress.energy_calls
        found = fitted.evaluate(
            n, repeats=repeats, seed=seed, likelihood=likelihood, likelihood_n=likelihood_n,
            mcmc_calls=min(calls, spent), reference=ruler,
            correct=None if correct == "none" else correct, correct_steps=correct_steps,
        )  # fmt: skip
        about = tables.About.of_run(fitted)
    else:
        if correct != "none":
            raise UserError("--correct: only for a run")
        if target is None:
            raise UserError(f"{what}: name the target of these samples with --target")
        found = assessment.assess(
            target, samples.read(Path(what)), n=n, seed=seed, likelihood=likelihood,
            likelihood_n=likelihood_n, mcmc_calls=calls, reference=ruler, settings=set,
        )  # fmt: skip
        about = tables.About(target, Path(what).name)
    print(tables.as_json(about, found)) if json else tables.show(about, found)


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


def reference(
    target: Target,
    /,
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 10000,
    output: Annotated[str | None, tyro.conf.arg(aliases=["-o"])] = None,
    seed: int = 0,
    scale: float = 1.0,
    chains: int = 64,
    max_rungs: int = 16,
    beta_min: float = 0.05,
    leapfrog: int = 8,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
) -> None:
    """Make near-exact reference samples: two independent sets with what vouches for them.

    Exact where the target can be drawn from; otherwise parallel tempering with HMC moves,
    burn-in and thinning from measured autocorrelation, until R-hat, the virial identity and
    the agreement of compact and dispersed starts are met. Exit code 1 if they are not.

    Args:
        target: a name from `demx list`.
        n: samples in each of the two sets.
        output: npz file (default: the user's cache, where `demx evaluate` looks).
        seed: all randomness follows from it.
        scale: rough width of the target's mass.
        chains: independent ensembles side by side.
        max_rungs: most temperatures of an ensemble.
        beta_min: lowest inverse temperature; closer to 1 is cheaper where barriers are low.
        leapfrog: steps of one HMC move.
        set: change a setting of the target, such as target.num_particles=7.
    """
    from demx import assessment
    from demx.report import tables

    if n < 100:
        raise UserError(f"n: expected at least 100, got {n}")
    made, path = assessment.reference(
        target, n=n, output=output, seed=seed, settings=set,
        report=lambda text: print(text, file=sys.stderr, flush=True),
        scale=scale, num_chains=chains, max_rungs=max_rungs, beta_min=beta_min,
        num_leapfrog=leapfrog,
    )  # fmt: skip
    tables.show_reference(target, made, path)
    if not made.passed:
        sys.exit(1)


def list_() -> None:
    """List targets, methods, and what the sections of a configuration can be."""
    from demx.report import tables

    tables.show_registries()


def main() -> None:
    """Entry point: errors a user can mend end with one line and exit code 2."""
    prepare_jax()
    commands = {
        "fit": fit,
        "sample": sample,
        "evaluate": evaluate,
        "report": report,
        "reference": reference,
        "bench": bench,
        "list": list_,
    }
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"demx {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="demx",
            description="Samples from p(x) ∝ exp(-E(x)), from the energy alone.",
        )
    except (UserError, Diverged) as error:
        print(f"demx: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a full disk, a directory that cannot be written
        print(f"demx: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("demx: interrupted", file=sys.stderr)
        sys.exit(130)
