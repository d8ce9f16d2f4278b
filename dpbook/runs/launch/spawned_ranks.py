"""Ranks that a script starts itself, with `torch.multiprocessing.spawn` or `multiprocessing`.

With ``--spawns`` the script runs once, in the environment that ``python script.py`` would have. A process that calls
`init_process_group` becomes the rank that it names there; this may also be the process that runs the script. Without
``--spawns`` torchrun starts the script in every rank, so a process of it that joins in the rank's place is an error.
"""

import atexit
import functools
import importlib
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlparse

from dpbook.core import PARENT, DpbookError, InvalidArgument, end_with_parent, rebind_names
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import REPORT_VARIABLE
from dpbook.runs.launch.rank_setup import begin_rank, end_rank, stop_watcher, write_error

RECORDED_FILE = "recorded-{}"
"""File of a rank that a watcher has ended because its recording is complete."""
POLL_SECONDS = 0.25
GRACE_SECONDS = 30.0
"""Time in which a script may end by itself, or start the ranks again, when one of them has failed."""
SHUTDOWN_SECONDS = 5.0
"""Time in which a rank may write where it is after SIGTERM."""


@dataclass(frozen=True)
class LaunchedScript:
    """A script that was started to train on ``world`` ranks; it leaves its files in ``folder``.

    ``rank`` is the rank that torchrun has started, None if the script starts its ranks itself.
    """

    folder: Path
    world: int
    rank: int | None

    def has_failed(self, for_seconds: float = 0.0) -> bool:
        """Return True if a rank of the script has failed at least so many seconds ago, and was not started again."""
        for error in self.folder.glob(failure_files.ERROR_FILE.format("*" if self.rank is None else self.rank)):
            with suppress(FileNotFoundError):  # the rank is just started again
                if time.time() - error.stat().st_mtime >= for_seconds:
                    return True
        return False

    def all_recorded(self) -> bool:
        return all((self.folder / RECORDED_FILE.format(rank)).exists() for rank in range(self.world))


class JoiningProcess:
    """This process as the rank that it becomes when it calls `init_process_group`."""

    def __init__(self, script: LaunchedScript) -> None:
        self.rank: int | None = None
        self._script = script
        self._groups: list[Any] = []  # when a group is freed torch may wait for a thread that waits for Python
        self._dist = importlib.import_module("torch.distributed")
        self._join = self._dist.init_process_group
        for name in ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh"):
            module = sys.modules.get(name)
            if hasattr(module, self._join.__name__):
                setattr(module, self._join.__name__, self._init_process_group)
        rebind_names([(self._join, self._init_process_group)])

    def _init_process_group(self, *args: Any, **options: Any) -> None:
        if self.rank is None:
            rank, world = _rank_and_world(inspect.signature(self._join).bind(*args, **options).arguments)
            if min(rank, world) < 0:
                self._join(*args, **options)  # it raises an error
            self._begin(rank, world)
            self._dist.init_process_group(*args, **options)  # with what a watcher has put around it
        else:
            self._join(*args, **options)
        self._groups.append(self._dist.group.WORLD)

    def _begin(self, rank: int, world: int) -> None:
        script = self._script
        error: DpbookError | None = None
        if script.rank is not None:
            error = DpbookError("the script starts its ranks itself, and torchrun has started others: add --spawns")
        elif world != script.world:
            error = InvalidArgument("--nproc", script.world, f"the number of ranks that the script starts: {world}")
        if error:
            write_error(script.folder, script.rank or 0, error)
            raise error
        begin_rank(script.folder, rank, world, anew=False)
        self.rank = rank

    def end(self, error: BaseException | None) -> None:
        """Write how the rank ended, if this process is one."""
        if self.rank is None:
            return
        folder, rank = self._script.folder, self.rank
        if error is None or (isinstance(error, SystemExit) and not error.code):
            end_rank(folder, rank)
            if getattr(error, "ends_script", False):
                (folder / RECORDED_FILE.format(rank)).touch()
        else:  # torch's function exits while it handles an error
            cause = (error.__context__ if isinstance(error, SystemExit) else None) or error
            print(write_error(folder, rank, cause), file=sys.stderr, end="", flush=True)
            stop_watcher()


def _rank_and_world(arguments: Mapping[str, Any]) -> list[int]:
    """Return what `init_process_group` is given: as an argument, in the address or in the environment; -1: nowhere."""
    address = dict(parse_qsl(urlparse(arguments.get("init_method") or "").query))
    found = []
    for name in ("rank", "world_size"):
        given = arguments.get(name, -1)
        found.append(int(address.get(name, os.environ.get(name.upper(), -1)) if given == -1 else given))
    return found


@functools.cache
def joining_process(script: LaunchedScript) -> JoiningProcess:
    """Return the `JoiningProcess` of this process; one that was forked has that of its parent."""
    return JoiningProcess(script)


@dataclass
class _WatchedRun:
    """Replacement for the method `run` of a process that the script starts."""

    run: Callable[[], object]
    script: LaunchedScript
    from_main_thread: bool

    def __call__(self) -> None:
        # The signal would come at the end of the thread that has started the process. A server that forks is no parent.
        if self.from_main_thread and os.environ.get(PARENT) == str(os.getppid()):
            end_with_parent()
        watch_processes(self.script)
        process = joining_process(self.script)
        process.rank = None
        atexit.register(_skip_teardown, process)
        try:
            self.run()
        except BaseException as error:
            process.end(error)
            atexit.unregister(_skip_teardown)
            raise
        process.end(None)


def _skip_teardown(process: JoiningProcess) -> None:
    """Exit before the interpreter is taken down, which frees groups, too. It is the last handler, as the first one."""
    if process.rank is not None:
        exit_at_once(0)


def watch_processes(script: LaunchedScript) -> None:
    """Watch the processes that this one starts, unless it has joined a process group itself."""
    import torch.distributed as dist

    start = getattr(BaseProcess.start, "unwatched", BaseProcess.start)

    def start_process(process: BaseProcess) -> None:
        if not dist.is_initialized():
            is_main = threading.current_thread() is threading.main_thread()
            vars(process)["run"] = _WatchedRun(process.run, script, is_main)
        start(process)
        _started[str(process.pid)] = process

    start_process.unwatched = start  # type: ignore[attr-defined]
    BaseProcess.start = start_process  # type: ignore[method-assign, assignment]


_started: dict[str, BaseProcess] = {}
"""Processes that this one has started, by process id."""


def report_exit_codes(script: LaunchedScript) -> None:
    """Write the exit codes of the ranks that this process has started, in the form of torchrun's report."""
    report = ""
    for rank in range(script.world):
        pid = failure_files.read_or_empty(script.folder / failure_files.PROCESS_ID_FILE.format(rank))
        with suppress(KeyError, ValueError):  # another process has started it, or its object is closed
            code = _started[pid].exitcode
            if code and code != -signal.SIGTERM:  # with which the script ends the others
                report += f"rank: {rank}\nexitcode: {code} (pid: {pid})\n"
    Path(os.environ[REPORT_VARIABLE]).write_text(report)


def end_ranks_first(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM in the process that runs the script: pass it on to the ranks, and end by it after them.

    `torch.multiprocessing.spawn` would interrupt them when this process ends, and then they seem to finish.
    """
    ranks = multiprocessing.active_children()
    for process in ranks:
        process.terminate()
    for process in ranks:
        process.join(SHUTDOWN_SECONDS)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_waiting_script(script: LaunchedScript) -> None:
    """From a thread, end a script that waits in vain: the ranks that it has started are recorded, or one has failed."""

    def watch() -> None:
        while not (failed := script.has_failed(GRACE_SECONDS)) and not script.all_recorded():
            time.sleep(POLL_SECONDS)
        report_exit_codes(script)
        for process in multiprocessing.active_children():  # a manager would outlive this one
            process.kill()
        exit_at_once(int(failed))

    threading.Thread(target=watch, daemon=True).start()


def exit_at_once(status: int) -> NoReturn:
    """End the process, whatever its threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
