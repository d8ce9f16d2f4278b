"""Prove or refute what this project says of GPUs, on the GPUs of this machine.

    python -m tests.gpu                          # all GPUs: one of them is enough, two prove more
    python -m tests.gpu --device sim --ranks 2 3 # a rehearsal on the stand-in accelerator, without a GPU

With several numbers of ranks all checks are made with the first, and those between ranks with the others, too. On GPUs
the default is all of them, and then 4, 3 and 2 where there are more.

It needs a Python with torch and NumPy, and no network. Exit status: 0, or 1 if a claim is refuted, or 2 without a GPU
or with arguments that are not possible. The record is written again after each check that starts launches, so that
nothing is lost if time runs out. Where a command may only take ten minutes, run --place ranks and --place host one
after the other.
"""

import argparse
import sys
from pathlib import Path

from dpbook.core import DpbookError


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "sim"], help="default: cuda, where there is a GPU")
    parser.add_argument("--ranks", type=int, nargs="+", help="ranks, each with a device of its own; one number or more")
    parser.add_argument("--only", metavar="CHECK", action="append", help="one check, by its name; may be repeated")
    parser.add_argument(
        "--place", choices=["ranks", "host"], default="", help="only those in one launch, or those that launch"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="file for the record, JSON, a page beside it; _RANKS is added to its name for more than one",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse(sys.argv[1:])
    from tests.gpu.proof import main

    try:
        sys.exit(main(options.device, options.ranks, options.only, options.out, options.place))
    except DpbookError as error:
        print(f"python -m tests.gpu: {error}", file=sys.stderr)
        sys.exit(2)
