"""The command ``dpbook``: its parser, and what all commands share."""

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from dpbook import __version__
from dpbook.app.commands import (
    audit,
    bench,
    course,
    diagnose,
    doctor,
    forecast,
    grade,
    lab,
    launch,
    mystery,
    nbgrader,
    report,
    slides,
    validate,
)
from dpbook.core import DpbookError

COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "lab": (lab, "copy the notebooks to workbook/ and open JupyterLab there"),
    "doctor": (doctor, "say what this machine can run, and what is missing"),
    "validate": (validate, "run notebooks and compare every output with the stored one"),
    "bench": (bench, "time all-reduces between processes, over a range of message sizes"),
    "launch": (launch, "train on several processes: our program, or a script of your own after --"),
    "audit": (audit, "say whether a training script of yours does what one process with the whole batch would do"),
    "diagnose": (diagnose, "read the Flight Recorder dumps of a run that hung: who did not come to which call"),
    "forecast": (forecast, "say how long a training script of yours would take on more GPUs, over other links"),
    "grade": (grade, "give marks for exercises that were handed in: a notebook, a folder, a class"),
    "nbgrader": (nbgrader, "lay out a course that nbgrader runs, with every exercise as an assignment"),
    "report": (report, "write the report of a run once more"),
    "course": (course, "write the exercises with a course's own numbers"),
    "slides": (slides, "make slides of chapters, for a course"),
    "mystery": (mystery, "a training script with a mistake to find, of which there are as many as seeds"),
}

BOOK = ("cloudpickle", "ipywidgets", "jupyterlab", "matplotlib", "tqdm", "filelock")
"""The modules of the extra in pyproject.toml."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    own, script = _split(sys.argv[1:] if argv is None else list(argv))
    parser = _parser()
    args, unknown = parser.parse_known_args(own)
    if unknown and args.command != "launch":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown, args.script = unknown, script
    if missing := _missing(args.command, script):
        print(f"dpbook {args.command}: needs {', '.join(missing)}: pip install 'dpbook[book]'", file=sys.stderr)
        return 1
    try:
        status: int = COMMANDS[args.command][0].run(args)
    except DpbookError as error:
        print(f"dpbook {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `dpbook doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _missing(command: str, script: list[str] | None) -> list[str]:
    """Return the packages of the extra ``book`` that are missing, for a command that needs them."""
    needs = command in ("lab", "validate", "bench", "report", "slides") or (command == "launch" and script is None)
    return [name for name in BOOK if importlib.util.find_spec(name) is None] if needs else []


def _split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Our arguments, and those after the first "--" of a command that starts somebody's script; None without it."""
    if argv[:1] not in (["launch"], ["audit"], ["forecast"]) or "--" not in argv:
        return argv, None
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpbook", description="A book on data-parallel training that runs.")
    parser.add_argument("--version", action="version", version=f"dpbook {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (command, purpose) in COMMANDS.items():
        command.add(commands.add_parser(name, help=purpose))
    return parser
