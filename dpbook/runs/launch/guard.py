"""Guard of a rank: torchrun starts it, and it runs a script or module and writes down how that ended.

    python -m dpbook.runs.launch.guard FOLDER SCRIPT [arguments]
    python -m dpbook.runs.launch.guard FOLDER -m MODULE [arguments]

The script needs no change, also if it starts its ranks itself: see `spawned_ranks`. Its error goes to FOLDER
with the time, so that the launcher finds the first error of all ranks. If the rank is ended because another failed, its
stack goes there; if the script finishes, an empty file does. The rank's last collectives go with each.

The environment variables of `dpbook.runs.launch.command` turn on more.
"""

import importlib.util
import os
import runpy
import sys
import threading
from pathlib import Path

from dpbook.core import end_with_parent, exit_without_teardown, import_without_collection
from dpbook.ranks import failure_files
from dpbook.runs.launch.rank_setup import begin_rank, end_rank, joins, write_error
from dpbook.runs.launch.spawned_ranks import PATIENCE_SECONDS, Place, names_processes, wait_for_first, watch_processes


def main(arguments: list[str]) -> int:
    """Run the script and return the exit status."""
    end_with_parent()
    import_without_collection("torch", "torch._dynamo")  # the first optimizer that is made imports torch._dynamo
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder, rank = Path(arguments[0], failure_files.ATTEMPT_FOLDER.format(restarts)), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    evidence = begin_rank(folder, rank)
    place, thread = Place.of_this_process(folder), threading.get_ident()
    watch_processes(place, lambda: joins(thread), evidence.stop)
    if rank != place.first and names_processes(_source(arguments)):
        wait_for_first(place, evidence.stop, PATIENCE_SECONDS)
    status: int = 0
    failure: BaseException | None = None
    try:
        if arguments[1] == "-m":
            sys.argv = arguments[2:]
            runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
            runpy.run_path(arguments[1], run_name="__main__")
    except SystemExit as error:
        failure = error
        if isinstance(error.code, int | None):
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException as error:  # the launcher reports every kind of error
        status, failure = 1, error
    started = place.status_of_started()
    if started is not None:
        status = started
    elif status and failure:
        text = write_error(folder, rank, failure)
        print("" if isinstance(failure, SystemExit) else text, file=sys.stderr, end="")
    if not status:
        place.end_script()
        end_rank(folder, rank)
    return status


def _source(arguments: list[str]) -> str | None:
    """Return the path of the script or module, None if there is none."""
    if arguments[1] != "-m":
        return arguments[1]
    try:
        found = importlib.util.find_spec(arguments[2])
    except (ImportError, ValueError):
        return None
    return found.origin if found else None


if __name__ == "__main__":
    exit_without_teardown(main(sys.argv[1:]))
