"""``dpbook course``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.description = (
        "Write the exercises with a course's own numbers in the tasks that ask for a value, and their solutions into a "
        "folder beside them. The same seed gives the same numbers; grade with dpbook grade --course SEED."
    )
    parser.add_argument("seed", type=int, metavar="SEED", help="of the course, such as its year")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a folder, new or empty")


def run(args: argparse.Namespace) -> int:
    """Write the notebooks, and say which tasks have other numbers."""
    from dpbook.classroom import varying, write_course
    from dpbook.core import DpbookError, check_int, plural

    check_int("SEED", args.seed, 0)
    if args.to.exists() and not (args.to.is_dir() and not any(args.to.iterdir())):
        raise DpbookError(f"{args.to} holds something, and nothing is replaced: name another folder")
    written = write_course(args.seed, args.to)
    print(f"{plural(len(written), 'notebook')} in {args.to}, the solutions in {args.to / 'solutions'}")
    print("other numbers in", ", ".join(each.task for each in varying()))
    return 0
