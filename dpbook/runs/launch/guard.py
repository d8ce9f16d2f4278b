"""Guard of a script or module: it runs it, as a rank that torchrun has started, and writes down how that ended.

    python -m dpbook.runs.launch.guard FOLDER SCRIPT [arguments]
    python -m dpbook.runs.launch.guard FOLDER -m MODULE [arguments]

The script needs no change. Its error goes to FOLDER with the time, so that the launcher finds the first error of all
ranks. If the rank is ended because another failed, its stack goes there; if the script finishes, an empty file does.
The rank's last collectives go with each.

The environment variables of `dpbook.runs.launch.command` turn on more. One says that the script starts its ranks itself
(see `spawned_ranks`); the launch then starts a single guard, without torchrun.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType

from dpbook.core import end_with_parent, exit_without_teardown, import_without_collection
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import RECORDED_VARIABLE, SPAWNS_VARIABLE
from dpbook.runs.launch.rank_setup import begin_rank, end_rank, prepare_rank, write_error
from dpbook.runs.launch.spawned_ranks import (
    LaunchedScript,
    end_ranks_first,
    end_waiting_script,
    joining_process,
    report_exit_codes,
    watch_processes,
)


def main(arguments: list[str]) -> int:
    """Run the script and return the exit status."""
    end_with_parent()
    import_without_collection("torch", "torch._dynamo")  # the first optimizer that is made imports torch._dynamo
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder = Path(arguments[0], failure_files.ATTEMPT_FOLDER.format(restarts))
    folder.mkdir(parents=True, exist_ok=True)
    joining = None
    if spawned := os.environ.get(SPAWNS_VARIABLE):
        script = LaunchedScript(folder, int(spawned), None)
        signal.signal(signal.SIGTERM, end_ranks_first)
        joining = joining_process(script)
        joining.prepare()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for the ranks, which inherit this and may handle the signal
    else:
        script = LaunchedScript(folder, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
        begin_rank(folder, int(os.environ["RANK"]), script.world, prepare_rank(folder))
    if spawned or RECORDED_VARIABLE in os.environ:
        end_waiting_script(script)
    watch_processes(script)
    status: int = 0
    failure: BaseException | None = None
    try:
        if arguments[1] == "-m":
            sys.argv = arguments[2:]
            runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
            _run_file(arguments[1])
    except SystemExit as error:
        failure = error
        if isinstance(error.code, int | None):
            status = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")  # not by print, which a script may replace
            status = 1
    except BaseException as error:  # the launcher reports every kind of error
        status, failure = 1, error
    if joining:
        report_exit_codes(script)
    if joining and joining.rank is not None:
        joining.end(failure)
    elif joining and script.is_recorded():  # the script may miss what its ranks were to do after the last update
        status = 0
    elif script.has_failed():  # in a process of the script, whose error this process repeats or ignores
        status = status or 1
    elif status and failure:
        text = write_error(folder, failure_files.SCRIPT if script.rank is None else script.rank, failure)
        sys.stderr.write("" if isinstance(failure, SystemExit) else text)
    elif script.rank is not None:
        end_rank(folder, script.rank)
    return status


def _run_file(path: str) -> None:
    """Run a script as Python does: errors name the file as it was given, and ``__file__`` is absolute."""
    if Path(path).is_dir():
        runpy.run_path(path, run_name="__main__")
    else:
        module = sys.modules["__main__"] = ModuleType("__main__")
        module.__file__ = str(Path(path).absolute())
        exec(compile(Path(path).read_bytes(), path, "exec"), vars(module))


if __name__ == "__main__":
    exit_without_teardown(main(sys.argv[1:]))
