"""The command `demx`. Nothing heavy is imported before a command has been chosen."""

import sys
import warnings

import tyro

from demx import __version__
from demx.commands.bench import bench
from demx.commands.judging import compare, evaluate, reference
from demx.commands.options import description, flowing
from demx.commands.runs import fit, list_, report, sample
from demx.errors import Diverged, UserError
from demx.interruption import heard_early
from demx.machine import prepare_jax

COMMANDS = {
    "fit": fit,
    "sample": sample,
    "evaluate": evaluate,
    "compare": compare,
    "report": report,
    "reference": reference,
    "bench": bench,
    "list": list_,
}


def call(arguments: list[str]) -> None:
    """The command that the arguments name, or its help."""
    style = (tyro.conf.FlagCreatePairsOff,)
    for command in COMMANDS.values():
        command.__doc__ = flowing(command.__doc__)
    name, *rest = arguments or [""]
    if name not in COMMANDS:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="demx",
            description="Samples from p(x) ∝ exp(-E(x)), from the energy alone.",
            args=arguments,
            config=style,
        )
        return
    if {"-h", "--help"} & {*rest}:  # tyro would not break these lines
        print(description(COMMANDS[name]), end="\n\n")
    tyro.cli(COMMANDS[name], prog=f"demx {name}", description="", args=rest, config=style)


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """Warnings for users are sentences; where in demx they come from does not help them."""
    if issubclass(category, UserWarning):
        print(f"demx: warning: {message}", file=sys.stderr)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, file=sys.stderr, end="")


def main() -> None:
    """Entry point: errors a user can mend end with one line and exit code 2."""
    prepare_jax()
    warnings.showwarning = _warn
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"demx {__version__}")
        return
    try:
        with heard_early():
            call(sys.argv[1:])
    except (UserError, Diverged) as error:
        print(f"demx: {error}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:  # JAX passes on what a function on the host raised as text
        said = [line for line in str(error).splitlines() if "black box: " in line]
        if not said:
            raise
        print(f"demx: {said[-1][said[-1].index('black box: ') :]}", file=sys.stderr)
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
