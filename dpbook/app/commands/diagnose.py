"""``dpbook diagnose``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Read the Flight Recorder dumps of a run that hung or failed, from any program, and name the rank that never "
        "joined a collective. The exit status is 0 if all ranks made the same calls and all calls completed, else 1; "
        "it is also 1 if a rank left no dump."
    )
    parser.add_argument(
        "folder",
        type=Path,
        help="folder with one dump per rank, as torch writes at a timeout (TORCH_FR_DUMP_TEMP_FILE)",
    )
    parser.add_argument("--prefix", help="prefix of the files' names, if the folder has dumps of several runs")
    parser.add_argument(
        "--world", type=int, metavar="N", help="world size, if the last ranks may have left no dump: dumps of "
        "gloo do not contain it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Read the dumps, compare them, and print the diagnosis."""
    from dpbook.runs.postmortem import read_dumps

    dumps = read_dumps(args.folder, args.prefix, args.world)
    diagnosis = dumps.diagnosis()
    print(diagnosis or "all ranks called the same collectives, and all of them completed")
    print(dumps)
    return 1 if diagnosis else 0
