"""What torchrun starts for each rank: another script or module, whose end is written down.

    python -m dpbook.runs.launch.guard FOLDER SCRIPT [arguments]
    python -m dpbook.runs.launch.guard FOLDER -m MODULE [arguments]

The script needs no change. If it raises, the error goes to FOLDER with its time, so that the first of all ranks can be
told; if the rank is ended because another failed, it goes there where it was; if it finishes, that goes there. With
each go the rank's last collectives.

Three variables ask for more: DPBOOK_START_TIMEOUT (seconds) ends a rank that waits for so long for the others to meet,
DPBOOK_CHECK_CALLS (seconds) compares the ranks' collectives before they are called, and DPBOOK_WATCHER names a module
whose ``install()`` is called before the script begins.
"""

import importlib
import os
import runpy
import sys
import threading
from datetime import timedelta
from pathlib import Path

from dpbook.core import end_with_parent, leave
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import CHECK_CALLS, WATCH_START, WATCHER
from dpbook.runs.launch.full_disk import in_plain_words
from dpbook.runs.launch.rank_evidence import Evidence
from dpbook.runs.launch.tracebacks import of_the_script, way_to
from dpbook.runs.launch.watchdog import watch_start
from dpbook.runs.postmortem import flight_recorder


def main(arguments: list[str]) -> int:
    """Run the script and return the exit status."""
    end_with_parent()
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder, rank = Path(arguments[0], failure_files.ATTEMPT.format(restarts)), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    for name in (
        failure_files.ERROR,
        failure_files.STACK,
        failure_files.RESULT,
        failure_files.CALLS,
        failure_files.BEAT,
        f"{failure_files.HANDLED}/{failure_files.ERROR}",
    ):  # where another node made all start again, the number is the same
        (folder / name.format(rank)).unlink(missing_ok=True)
    stack = open(folder / failure_files.STACK.format(rank), "a")  # noqa: SIM115  # open until the process ends
    (folder / failure_files.PROCESS.format(rank)).write_text(str(os.getpid()))
    Evidence(folder, rank, stack).watch()
    if patience := float(os.environ.get(WATCH_START, 0)):
        watch_start(patience, lambda: _give_up(folder, rank, patience))
    if seconds := float(os.environ.get(CHECK_CALLS, 0)):
        from dpbook.runs.launch import collective_check  # loads torch

        collective_check.install(timedelta(seconds=seconds))
    if watcher := os.environ.get(WATCHER):
        importlib.import_module(watcher).install()
    try:
        if arguments[1] == "-m":
            sys.argv = arguments[2:]
            runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
            runpy.run_path(arguments[1], run_name="__main__")
    except SystemExit as error:
        if status := _status(error):
            _leave_error(folder, rank, error)
            return status
    except BaseException as error:  # whatever it is, the launcher tells it
        print(_leave_error(folder, rank, in_plain_words(error)), file=sys.stderr, end="")
        return 1
    flight_recorder.write_calls(folder, rank)
    (folder / failure_files.RESULT.format(rank)).touch()
    return 0


def _leave_error(folder: Path, rank: int, error: BaseException) -> str:
    """Write down the error and the last collectives; its traceback is returned."""
    flight_recorder.write_calls(folder, rank)
    return failure_files.write_error(
        folder, rank, error, of_the_script(error.__traceback__), joined=flight_recorder.joined()
    )


def _give_up(folder: Path, rank: int, patience: float) -> None:
    """End this process, whose main thread waits inside torch."""
    error = TimeoutError(f"{failure_files.NOT_MET} within {patience:g} s")
    trace = of_the_script(way_to(sys._current_frames().get(threading.main_thread().ident or 0)))
    print(failure_files.write_error(folder, rank, error, trace), file=sys.stderr, end="", flush=True)
    os._exit(1)


def _status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
