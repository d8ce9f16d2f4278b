"""``dpbook grade``"""

import argparse
import io
import json
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbook.classroom.gradebook import Roster
    from dpbook.classroom.marks import Marks, Submission

FORMATS = ("plain", "canvas", "moodle")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="a notebook, a folder of notebooks, or a class (a folder of either)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="seed of the test instances (default: a random one, which is printed)")
    parser.add_argument(
        "--course", type=int, metavar="SEED", help="seed that was given to dpbook course, if it wrote the exercises"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=os.cpu_count() or 1,
        help="number of tasks graded in parallel (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless every submission has full points")
    files = parser.add_argument_group("reports (an existing file is never overwritten)")
    files.add_argument("--csv", type=Path, metavar="FILE", help="points per task, one row per submission")
    files.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="columns of the CSV file (default: %(default)s)"
    )
    files.add_argument(
        "--roster", type=Path, metavar="FILE", help="CSV file of the students, exported from the gradebook"
    )
    files.add_argument("--html", type=Path, metavar="FOLDER", help="a page for each submission, and one for the class")
    files.add_argument(
        "--return", dest="returned", type=Path, metavar="ZIP",
        help="a ZIP file of the same pages, named so that Canvas or Moodle can return them",
    )  # fmt: skip
    files.add_argument(
        "--board", type=Path, metavar="FILE", help="a page with the class's best results in the tasks that have a par"
    )
    files.add_argument(
        "--words-sheet", type=Path, metavar="FILE",
        help="a page with all answers in words, without names, for marking by hand",
    )  # fmt: skip
    parser.add_argument(
        "--words", type=Path, metavar="FILE",
        help="CSV file of points for answers in words, saved from the page of --words-sheet",
    )  # fmt: skip
    files.add_argument("--gradescope", type=Path, metavar="FILE", help="Gradescope's results.json, for one submission")


def run(args: argparse.Namespace) -> int:
    """Grade the submissions. Return 0, or with ``--strict`` 1 if a submission has lost points."""
    from dpbook.classroom import begin_course
    from dpbook.classroom.gradebook import read, words
    from dpbook.classroom.marks import find, grade, table
    from dpbook.core import DpbookError, check_int, handling_signals, plural

    begin_course(args.course)
    seed = secrets.randbits(32) if args.seed is None else check_int("--seed", args.seed, 0)
    jobs = check_int("--jobs", args.jobs, 1)
    submissions = find(args.paths, whole=bool(args.gradescope))
    _check_files(args, submissions)
    roster = read(args.roster) if args.roster else None
    given = words.read_points(args.words) if args.words else None
    with handling_signals(lambda number, frame: sys.exit(128 + number)):  # what was begun is cleared away
        marks = grade(
            submissions, seed, jobs=jobs, on_progress=_progress if sys.stderr.isatty() else lambda done, of: None
        )
    if given:
        marks = words.with_points(marks, given)
        if left := words.absent(marks, given):
            print(f"{plural(left, 'row')} of {args.words} match no submission here", file=sys.stderr)
    failed = _print(json.dumps(marks.as_json(), indent=1) if args.json else table(marks))
    _write(args, marks, roster)
    if failed:
        raise DpbookError(f"the marks cannot be printed: {failed}")
    return int(args.strict and not marks.full)


def _print(text: str) -> OSError | None:
    """Print the marks. Returns what went wrong: it must not cost the reports that are still to be written."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that it cannot show must not cost the marks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        with suppress(OSError, ValueError):  # what is left in the buffer would fail once more at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None if isinstance(error, BrokenPipeError) else error  # who reads only the head has seen enough
    return None


def _check_files(args: argparse.Namespace, submissions: "Sequence[Submission]") -> None:
    """Before anything is graded: can the reports be written, and is nothing lost by it?"""
    from dpbook.core import DpbookError

    files = args.csv, args.gradescope, args.html, args.words_sheet, args.returned, args.board
    asked = [path for path in files if path]
    if len(set(asked)) < len(asked):
        raise DpbookError("two reports have the same file name")
    for path in asked:
        if path.exists() and not (path is args.html and path.is_dir() and not any(path.iterdir())):
            raise DpbookError(f"{path} already exists and is not overwritten: move it, or choose another name")
    if args.csv is None and (args.roster or args.format != FORMATS[0]):
        raise DpbookError("--roster and --format need --csv FILE")
    if args.gradescope and len(submissions) != 1:
        raise DpbookError(f"--gradescope needs exactly one submission, got {len(submissions)}")


def _write(args: argparse.Namespace, marks: "Marks", roster: "Roster | None") -> None:
    from dpbook.classroom.gradebook import results, spreadsheet, words
    from dpbook.core import DpbookError, plural, write_atomically

    try:
        if args.csv:
            content, remarks = spreadsheet(marks, args.format, roster)
            write_atomically(args.csv, content)
            _say(*remarks, f"wrote {args.csv}")
        if args.returned:
            from dpbook.classroom.gradebook import pages

            write_atomically(args.returned, pages.to_return(marks))
            _say(f"wrote {args.returned}")
        if args.words_sheet:
            write_atomically(args.words_sheet, words.sheet(marks).encode())
            _say(f"wrote {args.words_sheet}; --seed {marks.seed} --words FILE reads the points that this page saves")
        if args.board:
            from dpbook.classroom.gradebook import board

            write_atomically(args.board, board.page(marks).encode())
            _say(f"wrote {args.board}")
        if args.gradescope:
            write_atomically(args.gradescope, json.dumps(results(marks), indent=1).encode())
            _say(f"wrote {args.gradescope}")
        if args.html:
            from dpbook.classroom.gradebook import pages

            _say(f"wrote {plural(len(pages.write(marks, args.html)), 'page')} in {args.html}")
    except OSError as error:
        raise DpbookError(f"a report cannot be written: {error}") from None


def _progress(graded: int, total: int) -> None:
    print(f"\r{graded} of {total} tasks graded", end="\n" if graded == total else "", file=sys.stderr, flush=True)


def _say(*lines: str) -> None:
    for line in lines:
        print(f"dpbook grade: {line}", file=sys.stderr)
