"""The command ``dpbook``. Each subcommand imports what it needs only when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpbook import __version__
from dpbook.errors import DpbookError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except DpbookError as error:
        print(f"dpbook {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpbook", description="A book on data-parallel training that runs.")
    parser.add_argument("--version", action="version", version=f"dpbook {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    lab = commands.add_parser("lab", help="copy the notebooks to workbook/ and open JupyterLab there")
    lab.add_argument("--ip", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    lab.add_argument("--port", type=int, default=8888, help="first port to try (default: %(default)s)")
    lab.add_argument("--no-browser", action="store_true", help="print the address instead of opening it")
    lab.add_argument("--allow-root", action="store_true", help="run as root all the same")
    lab.set_defaults(run=_lab)

    doctor = commands.add_parser("doctor", help="say what this machine can run, and what is missing")
    doctor.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    doctor.set_defaults(run=_doctor)

    validate = commands.add_parser("validate", help="run notebooks and compare every output with the stored one")
    validate.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="notebooks or folders (default: chapters and solutions)"
    )
    validate.add_argument("--write", action="store_true", help="run the notebooks and store their outputs instead")
    validate.add_argument("-n", "--jobs", type=int, default=2, help="notebooks checked at once (default: %(default)s)")
    validate.set_defaults(run=_validate)
    return parser


def _lab(args: argparse.Namespace) -> int:
    from dpbook.jupyter import open_lab

    open_lab(ip=args.ip, port=args.port, browser=not args.no_browser, allow_root=args.allow_root)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from dpbook.doctor import diagnose

    diagnosis = diagnose()
    print(diagnosis.to_json() if args.json else diagnosis)
    return 0 if diagnosis.ok else 1


def _validate(args: argparse.Namespace) -> int:
    from dpbook import validate

    if args.write:
        return validate.write(args.paths)
    return validate.compare(args.paths, jobs=args.jobs)
