"""``dpbook validate``"""

from __future__ import annotations

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="notebooks or folders (default: chapters and solutions)"
    )
    parser.add_argument("--write", action="store_true", help="run the notebooks and store their outputs instead")
    parser.add_argument("-n", "--jobs", type=int, default=2, help="notebooks checked at once (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Compare the notebooks with what they show, or write what they show."""
    from dpbook.app import validation

    if args.write:
        return validation.write(args.paths)
    return validation.compare(args.paths, jobs=args.jobs)
