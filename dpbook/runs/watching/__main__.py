"""Run a script with hooks in a rank that torchrun, srun or another launcher has started.

    torchrun --nproc-per-node 4 -m dpbook.runs.watching runs/recorded train.py --epochs 1
    srun python -m dpbook.runs.watching --audit runs/recorded -m package.train

Each rank leaves a journal in the folder, which all of them must see. Afterwards ``dpbook report FOLDER`` writes a
report, and ``dpbook audit --read FOLDER`` judges the recording that was made with --audit.
"""

import argparse
import runpy
import sys
from pathlib import Path

from dpbook.core import DpbookError
from dpbook.runs.watching.installation import recording

AUDITED_UPDATES, REPLAYED_UPDATE = 5, 1


def main(arguments: list[str]) -> None:
    """Run the script with the recorder, and exit with the script's status."""
    parser = argparse.ArgumentParser(
        prog="python -m dpbook.runs.watching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audit", action="store_true", help="record what an audit compares, not what a report needs")
    parser.add_argument("--updates", type=int, default=AUDITED_UPDATES, help="of an audit (default: %(default)s)")
    parser.add_argument("folder", type=Path, help="folder of the recording")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script, or -m and a module, and its arguments")
    chosen = parser.parse_args(arguments)
    if not chosen.script or chosen.script == ["-m"]:
        parser.error("a script is missing")
    options = {"updates": chosen.updates, "replay": REPLAYED_UPDATE} if chosen.audit else {"sampled": True}
    with recording(chosen.folder, audit=chosen.audit, **options):
        if chosen.script[0] == "-m":
            sys.argv = chosen.script[1:]
            runpy.run_module(chosen.script[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = chosen.script
            sys.path.insert(0, str(Path(chosen.script[0]).resolve().parent))
            runpy.run_path(chosen.script[0], run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DpbookError as error:
        sys.exit(f"python -m dpbook.runs.watching: {error}")
