"""The command ``dpbook``: its parser, and what all commands share."""

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType

from dpbook import __version__
from dpbook.app.commands import (
    audit,
    bench,
    book,
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
    "doctor": (doctor, "check what this machine can run, and list what is missing"),
    "validate": (validate, "run notebooks and compare every output with the stored one"),
    "bench": (bench, "time all-reduces between processes, over message sizes"),
    "launch": (launch, "train on several processes: your script, or our program"),
    "audit": (audit, "check whether your script trains as one process would"),
    "diagnose": (diagnose, "read Flight Recorder dumps and name the rank that missed a collective"),
    "forecast": (forecast, "predict how long a step of your script takes on more GPUs"),
    "grade": (grade, "grade exercises: a notebook, a folder or a class"),
    "nbgrader": (nbgrader, "write a course for nbgrader"),
    "report": (report, "rewrite the report of a run"),
    "course": (course, "write the exercises with different numbers for a course"),
    "book": (book, "build the book as static web pages, or as a PDF"),
    "slides": (slides, "make slides from chapters"),
    "mystery": (mystery, "write a training script with a mistake to find"),
}

BOOK = (
    "filelock", "ipywidgets", "jupyterlab", "latex2mathml", "matplotlib", "mistune", "pygments", "tqdm",
)  # fmt: skip
"""Modules of the extra ``book`` in pyproject.toml."""
NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lab", "validate", "slides"), BOOK),
    "book": ("mistune", "pygments", "latex2mathml"),
    "launch": ("matplotlib",),
}
"""Modules of the extra that a command needs; launching a user's script needs none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    own, script = _split(sys.argv[1:] if argv is None else list(argv))
    parser = _parser()
    if not own:
        parser.print_help()
        return 0
    if close := get_close_matches(own[0], COMMANDS, n=1) if own[0] not in COMMANDS else []:
        parser.error(f"unknown command '{own[0]}'; did you mean '{close[0]}'?")
    args, unknown = parser.parse_known_args(own)
    if unknown and args.command != "launch":
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown, args.script = unknown, script
    needed = NEEDED.get(args.command, ()) if script is None else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        print(f"dpbook {args.command}: needs {', '.join(missing)}: pip install 'dpbook[book]'", file=sys.stderr)
        return 1
    try:
        status: int = COMMANDS[args.command][0].run(args)
    except DpbookError as error:
        print(f"dpbook {args.command}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in BOOK:
            raise
        print(f"dpbook {args.command}: needs {error.name}: pip install 'dpbook[book]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `dpbook doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Split ``argv`` into dpbook's arguments and the script with its own; the script is None if there is none.

    The script is what comes after "--", or the first word that ends in ".py", or "-m" and a module.
    """
    if argv[:1] not in (["launch"], ["audit"], ["forecast"]):
        return argv, None
    for place, word in enumerate(argv):
        if word == "--":
            return argv[:place], argv[place + 1 :]
        if word == "-m" or (word.endswith(".py") and not word.startswith("-")):
            return argv[:place], argv[place:]
    return argv, None


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter that wraps the help text, except lines that begin with a space (examples)."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(line if line.startswith(" ") else super(_HelpFormatter, self)._fill_text(line, width, indent)
                         for line in lines)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpbook", description="A runnable book on data-parallel training.")
    parser.add_argument("--version", action="version", version=f"dpbook {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (command, purpose) in COMMANDS.items():
        subparser = commands.add_parser(name, help=purpose, formatter_class=_HelpFormatter)
        subparser.set_defaults(parser=subparser)
        command.add(subparser)
    return parser
