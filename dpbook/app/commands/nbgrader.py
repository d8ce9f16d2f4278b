"""``dpbook nbgrader``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Write nbgrader's configuration and an assignment for each exercise, with its solutions, into a folder. "
        "Existing files are kept. Then run in that folder: nbgrader generate_assignment 01_four_phase_loop"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the course, new or existing")
    parser.add_argument("--course", type=int, metavar="SEED", help="use the numbers of dpbook course SEED")


def run(args: argparse.Namespace) -> int:
    """Write the course folder and print what was written."""
    import secrets
    from importlib.util import find_spec

    from dpbook.classroom.nbgrader import write_course_files
    from dpbook.core import DpbookError, check_int, plural

    if args.course is not None:
        check_int("--course", args.course, 0)
    try:
        files = write_course_files(args.folder, seed=secrets.randbits(32), course=args.course)
    except OSError as error:
        raise DpbookError(f"cannot write the course: {error}") from None
    print(f"{args.folder}: {plural(len(files.written), 'file')} written")
    for path in files.unchanged:
        print(f"kept, although it differs from the version in this edition: {path}")
    if find_spec("nbgrader") is None:
        print("nbgrader is not installed here: pip install 'dpbook[class]'")
    return 0
