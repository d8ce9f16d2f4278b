"""``dpbook validate``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="notebooks or folders (default: chapters and solutions)"
    )
    parser.add_argument("--write", action="store_true", help="run the notebooks and store their new outputs")
    parser.add_argument(
        "--failed", type=Path, metavar="DIR", help="write the notebooks that fail to DIR with their new outputs"
    )
    parser.add_argument("-n", "--jobs", type=int, default=2, help="notebooks run in parallel (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Compare the notebooks with their stored outputs, or execute them and store new outputs."""
    from dpbook.app.notebooks import validation
    from dpbook.core import DpbookError, checkout

    checkout.root()  # raises where there is none: only there are solutions, and the settings of the comparison
    if args.write and args.failed:
        raise DpbookError("--failed cannot be used with --write, which compares nothing")
    return validation.write(args.paths) if args.write else validation.compare(args.paths, args.jobs, args.failed)
