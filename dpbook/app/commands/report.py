"""``dpbook report``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("folder", type=Path, help="folder of the run, such as runs/run")
    parser.add_argument("--baseline", type=Path, help="folder of the same training on one process, for comparison")


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    from dpbook.runs.report import pages

    print(pages.write(args.folder, args.baseline))
    return 0
