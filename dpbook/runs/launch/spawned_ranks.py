"""Ranks that a script starts itself, with `torch.multiprocessing.spawn` or `multiprocessing`.

With ``--spawns`` the script runs once, in the environment that ``python script.py`` would have. A process that calls
`init_process_group` becomes the rank that it names there; this may also be the process that runs the script. Without
``--spawns`` torchrun starts the script in every rank, so a process of it that joins in the rank's place is an error.

A process that the script starts is prepared before any code of the script runs in it, like a rank of torchrun: one that
is forked inherits the functions replaced here, and one that is spawned receives them with the data it needs to start.
"""

import functools
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
from multiprocessing import popen_fork, popen_forkserver, spawn
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlparse

from dpbook.core import (
    DpbookError,
    InvalidArgument,
    call_after_import,
    exit_at_once,
    exit_without_teardown,
    rebind_names,
)
from dpbook.ranks import failure_files
from dpbook.runs.launch.command import RECORDED_VARIABLE, REPORT_VARIABLE
from dpbook.runs.launch.rank_evidence import RankEvidence
from dpbook.runs.launch.rank_setup import begin_rank, end_rank, prepare_rank, stop_watcher, write_error
from dpbook.runs.postmortem.evidence import is_consequence

POLL_SECONDS = 0.25
GRACE_SECONDS = 30.0
"""Time in which a script may start the ranks again when one has failed, or a recorded rank of torchrun may end."""
SHUTDOWN_SECONDS = 30.0
"""Time in which the ranks may save and end after SIGTERM, as torchrun gives them."""
RECORDED_SECONDS = 2.0
"""Time in which a script that starts its ranks may end by itself when their recordings are complete."""


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
        for rank in range(self.world) if self.rank is None else (self.rank,):
            with suppress(FileNotFoundError):  # none, or the rank is just started again
                error = self.folder / failure_files.ERROR_FILE.format(rank)
                if time.time() - error.stat().st_mtime >= for_seconds:
                    return True
        return False

    def is_recorded(self) -> bool:
        """Return True if a watcher has ended all ranks of the script because their recordings are complete."""
        recorded = os.environ.get(RECORDED_VARIABLE, "")
        return bool(recorded) and all(os.path.exists(recorded.format(rank)) for rank in range(self.world))


class JoiningProcess:
    """This process as the rank that it becomes when it calls `init_process_group`."""

    def __init__(self, script: LaunchedScript) -> None:
        self.rank: int | None = None
        self._script = script
        self._evidence: RankEvidence | None = None
        call_after_import("torch.distributed.distributed_c10d", self._replace_join)

    def _replace_join(self, module: ModuleType) -> None:
        """Replace `init_process_group`, before other modules import it where torch is not loaded yet."""
        self._join = module.init_process_group

        @functools.wraps(self._join)
        def init_process_group(*args: Any, **options: Any) -> None:
            self._init_process_group(*args, **options)

        for name in (module.__name__, "torch.distributed", "torch.distributed.device_mesh"):
            if hasattr(sys.modules.get(name), self._join.__name__):
                setattr(sys.modules[name], self._join.__name__, init_process_group)
        rebind_names([(self._join, init_process_group)])

    def prepare(self, parent: int | None = None) -> None:
        """Begin in a new process, before the script does. ``parent``: see `RankEvidence`."""
        self.rank = None
        if self._script.rank is None:
            self._evidence = prepare_rank(self._script.folder, parent)

    def _init_process_group(self, *args: Any, **options: Any) -> None:
        if self.rank is None:
            rank, world = _rank_and_world(inspect.signature(self._join).bind(*args, **options).arguments)
            if min(rank, world) >= 0 and (rank, world) != (self._script.rank, self._script.world):
                self._begin(rank, world)
                # With what a watcher has put around it.
                sys.modules["torch.distributed"].init_process_group(*args, **options)
                return
        self._join(*args, **options)

    def _begin(self, rank: int, world: int) -> None:
        script, evidence = self._script, self._evidence
        if evidence and world == script.world:
            begin_rank(script.folder, rank, world, evidence, anew=False)
            self.rank = rank
            return
        error = DpbookError("the script starts its ranks itself, and torchrun has started others: add --spawns")
        if evidence:
            error = InvalidArgument("--nproc", script.world, f"the number of ranks that the script starts: {world}")
        write_error(script.folder, script.rank or 0, error)
        raise error

    def run(self, run: Callable[[], object]) -> None:
        """Run what the process was started for, and write how it ended."""
        try:
            run()
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Write how the process ended: as a rank, or with an error before it was one."""
        folder, rank = self._script.folder, self.rank
        if error is None or (isinstance(error, SystemExit) and not error.code):
            if rank is not None:
                end_rank(folder, rank)
            return
        if rank is None and (self._script.rank is not None or failure_files.read_error(folder, failure_files.STARTED)):
            return
        # torch's function exits while it handles an error
        cause = (error.__context__ if isinstance(error, SystemExit) else None) or error
        trace = write_error(folder, failure_files.STARTED if rank is None else rank, cause)
        if rank is not None:
            sys.stderr.write(trace)
            sys.stderr.flush()
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


class _Preparation:
    """Object among the data that a spawned process reads first; unpickling it there calls `prepare_process`."""

    def __init__(self, script: LaunchedScript) -> None:
        self._script = script

    def __reduce__(self) -> tuple[Callable[..., None], tuple[LaunchedScript]]:
        return prepare_process, (self._script,)


def prepare_process(script: LaunchedScript) -> None:
    """Let this process become a rank, and watch the processes that it starts."""
    joining_process(script)
    watch_processes(script)


def watch_processes(script: LaunchedScript) -> None:
    """Prepare the processes that this one starts, unless it has joined a process group itself, and note how they end.

    They are those of `multiprocessing`: a DataLoader's workers, for one, are processes of a rank and no ranks.
    """
    bootstrap, preparation_data = BaseProcess._bootstrap, spawn.get_preparation_data  # type: ignore[attr-defined]

    def prepared_bootstrap(process: BaseProcess, parent_sentinel: int | None = None) -> int:
        """Run in the new process."""
        if _has_joined():
            status: int = bootstrap(process, parent_sentinel)
            return status
        if signal.getsignal(signal.SIGTERM) is end_ranks_first:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        joining = joining_process(script)
        joining.prepare(parent_sentinel)
        vars(process)["run"] = functools.partial(joining.run, process.run)
        status = bootstrap(process, parent_sentinel)
        if script.rank is None:
            report_exit_codes(script)
        if joining.rank is not None and multiprocessing.get_start_method() == "spawn":
            exit_without_teardown(status)  # others end by os._exit
        return status

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = preparation_data(name)
        return data if _has_joined() else {**data, "dpbook": _Preparation(script)}

    BaseProcess._bootstrap = prepared_bootstrap  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
    for kind in (popen_fork.Popen, popen_forkserver.Popen):
        kind.poll = _noting_exit_code(kind.poll)  # type: ignore[method-assign]


def _has_joined() -> bool:
    """Return True if this process is in a process group. A script that has not imported torch keeps it unloaded."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _noting_exit_code(poll: Callable[..., int | None]) -> Callable[..., int | None]:
    @functools.wraps(poll)
    def noting(process: Any, *args: Any, **options: Any) -> int | None:
        code = poll(process, *args, **options)
        if code is not None:
            _exit_codes[str(process.pid)] = code
        return code

    return noting


_exit_codes: dict[str, int] = {}
"""Exit codes of the processes that this one has started and that have ended, by process id."""


def report_exit_codes(script: LaunchedScript) -> None:
    """Write how the ranks ended that this process has started, in the form of torchrun's report."""
    multiprocessing.active_children()  # it looks whether they have ended
    with open(os.environ[REPORT_VARIABLE], "a") as file:  # other processes of the script may have started ranks
        file.write(exit_code_report(script.folder, script.world, _exit_codes))


def exit_code_report(folder: Path, world: int, exit_codes: Mapping[str, int]) -> str:
    """Return how ranks ended, in the form of torchrun's report, from exit codes by process id.

    A script may end the other ranks by a signal when one has failed; some crash while they end.
    """
    has_cause = not all(map(is_consequence, failure_files.read_errors(folder, world).values()))
    report = ""
    for rank in range(world):
        pid = failure_files.read_or_empty(folder / failure_files.PROCESS_ID_FILE.format(rank))
        code = exit_codes.get(pid)
        if code and (code == -signal.SIGTERM or (code < 0 and has_cause)):
            report += f"Sending process {pid} closing signal\n"
        elif code:
            report += f"rank: {rank}\nexitcode: {code} (pid: {pid})\n"
    return report


def end_ranks_first(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM in the process that runs the script: pass it on to the ranks, and end by it after them.

    `torch.multiprocessing.spawn` would interrupt them when this process ends, and then they seem to finish.
    """
    ranks = multiprocessing.active_children()
    for process in ranks:
        process.terminate()
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def end_waiting_script(script: LaunchedScript) -> None:
    """From a thread, end a script that waits in vain: the ranks are recorded, or one that it has started has failed."""
    starts_ranks = script.rank is None

    def watch() -> None:
        while not (failed := starts_ranks and script.has_failed(GRACE_SECONDS)) and not script.is_recorded():
            time.sleep(POLL_SECONDS)
        if not failed:
            time.sleep(RECORDED_SECONDS if starts_ranks else GRACE_SECONDS)
        if starts_ranks:
            report_exit_codes(script)
        exit_at_once(int(failed))

    threading.Thread(target=watch, daemon=True).start()
