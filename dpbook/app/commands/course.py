"""``dpbook course``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Write the exercises with different numbers in the tasks that ask for a value, and their solutions into "
        "another folder, which you keep. Or write questions for an oral exam, also with such numbers. The "
        "same seed gives the same numbers; grade the exercises with dpbook grade --course SEED."
    )
    parser.add_argument("seed", type=int, metavar="SEED", help="seed of the course, such as its year")
    parser.add_argument("--to", type=Path, metavar="DIR", help="folder for the exercises to hand out, new or empty")
    parser.add_argument(
        "--solutions", type=Path, metavar="DIR", help="folder for the solutions, new or empty (default: DIR_solutions)"
    )
    parser.add_argument(
        "--oral", type=Path, metavar="FILE", help="file for the questions of an oral exam, with answers"
    )


def run(args: argparse.Namespace) -> int:
    """Write the exercises, the oral questions, or both."""
    from dpbook.classroom import questions_page
    from dpbook.core import DpbookError, check_int, write_atomically

    check_int("SEED", args.seed, 0)
    if not (args.to or args.oral):
        raise DpbookError("nothing to write: give --to DIR for exercises, --oral FILE for questions, or both")
    if args.oral and args.oral.exists():
        raise DpbookError(f"{args.oral} already exists and is not overwritten: choose another file")
    if args.to:
        _write_exercises(args)
    if args.oral:
        write_atomically(args.oral, questions_page(args.seed).encode())
        print(f"questions for an oral exam in {args.oral}")
    return 0


def _write_exercises(args: argparse.Namespace) -> None:
    """Write the notebooks and print which tasks have different numbers."""
    from dpbook.classroom import varying, write_course
    from dpbook.core import DpbookError, plural

    to = args.to.resolve()
    for_teachers = (args.solutions or to.with_name(f"{to.name}_solutions")).resolve()
    for folder in (to, for_teachers):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise DpbookError(f"{folder} is not empty and nothing in it is overwritten: choose another folder")
    written = write_course(args.seed, to, for_teachers)
    print(f"{plural(len(written) // 2, 'notebook')} to hand out in {to}, the solutions in {for_teachers}")
    print("other numbers in", ", ".join(each.task for each in varying()))
