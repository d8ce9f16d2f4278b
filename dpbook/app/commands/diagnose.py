"""``dpbook diagnose``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Read the Flight Recorder dumps of a run that hung or failed, of whatever program, and say which rank did not "
        "come to which collective. The exit status is 0 if all ranks made the same calls and all ended, else 1: also "
        "where a rank has left no dump."
    )
    parser.add_argument(
        "folder", type=Path, help="with a file per rank, as torch writes at a time-out (TORCH_FR_DUMP_TEMP_FILE)"
    )
    parser.add_argument("--prefix", help="what the files' names begin with, where several runs lie in the folder")
    parser.add_argument(
        "--world", type=int, metavar="N", help="how many ranks there were, where the last of them may have left no "
        "file: over gloo the files do not say it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Read, compare, tell."""
    from dpbook.runs.postmortem import read_dumps

    dumps = read_dumps(args.folder, args.prefix, args.world)
    diagnosis = dumps.diagnosis()
    print(diagnosis or "all ranks called the same collectives, and all of them completed")
    print(dumps)
    return 1 if diagnosis else 0
