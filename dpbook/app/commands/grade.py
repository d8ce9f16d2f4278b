"""``dpbook grade``"""

import argparse
import json
import os
import secrets
import sys
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="a notebook, a folder of notebooks, or a class: a folder of either",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, help="of the instances that answers are tried on (default: drawn, and told)"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=os.cpu_count() or 1, help="judges at once (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="write JSON in place of tables")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless every submission has all points")


def run(args: argparse.Namespace) -> int:
    """Grade what was handed in. Returns 0, or with ``--strict`` 1 where points are missing."""
    from dpbook.core import check_int
    from dpbook.grading.marking import find, grade, table

    seed = secrets.randbits(32) if args.seed is None else check_int("--seed", args.seed, 0)
    jobs = check_int("--jobs", args.jobs, 1)
    marks = grade(find(args.paths), seed, jobs=jobs, tell=_progress if sys.stderr.isatty() else lambda done, of: None)
    print(json.dumps(marks.as_json(), indent=1) if args.json else table(marks))
    return int(args.strict and not marks.full)


def _progress(done: int, of: int) -> None:
    print(f"\r{done} of {of} tasks graded", end="\n" if done == of else "", file=sys.stderr, flush=True)
