"""Ranks that a script starts itself, with `multiprocessing` or `torch.multiprocessing.spawn`, as ranks of a launch.

torchrun starts the script in every rank, and there each of them would start all. Here local rank 0 alone runs on when
the script starts its first process; the others wait, and if the script's text names `multiprocessing` they do not even
begin it. What happens next decides, and a file says so:

- A started process calls `init_process_group`: it is now the rank that it names, in the place of the launch's. The
  other ranks of the launch wait until the script has ended in local rank 0.
- Local rank 0 joins itself: the started process was for something else, and all ranks run on.
"""

import functools
import importlib
import inspect
import math
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlparse

from dpbook.core import PARENT, InvalidArgument, end_with_parent, exit_without_teardown, rebind_names
from dpbook.ranks import failure_files, held_port
from dpbook.runs.launch.rank_setup import begin_rank, end_rank, stop_watcher, write_error

STATE_FILE, WAITING_FILE, RECORDED_FILE = "started-by-{}.txt", "waits-{}", "recorded-{}"
"""What the ranks of a node are, by the first of them; a rank that waits; a rank whose recording is complete."""
THEMSELVES, STARTED, ENDED = (
    "the ranks join themselves",
    "processes of the script are the ranks",
    "the script has ended",
)
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable: its own process serves the store at ``MASTER_PORT``, and no rank has to."""
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""Longest time that a started process waits for the launch's rank in whose place it is, and that one for the first."""
GRACE_SECONDS = 10.0
"""Time in which a script may end by itself when one of the processes that it started has failed."""
_reserved = ExitStack()


@dataclass(frozen=True)
class Place:
    """Place of a rank in its launch: the folder of its files, the first rank of its node, and torchrun's port."""

    folder: Path
    rank: int
    first: int
    on_node: int
    world: int
    port: str

    @classmethod
    def of_this_process(cls, folder: Path) -> "Place":
        rank, local, on_node, world = (
            int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        )
        return cls(folder, rank, rank - local, on_node, world, os.environ.get("MASTER_PORT", ""))

    @property
    def state(self) -> str:
        """One of the three sentences, or "" if nothing is decided."""
        return failure_files.read_or_empty(self.folder / STATE_FILE.format(self.first))

    def set_state(self, state: str) -> None:
        (self.folder / STATE_FILE.format(self.first)).write_text(state)

    def exist(self, name: str) -> list[bool]:
        """Return for each rank of the node whether its file of this ``name`` exists."""
        return [(self.folder / name.format(self.first + local)).exists() for local in range(self.on_node)]

    def status_of_started(self) -> int | None:
        """Return 1 if one of the processes of the script failed as a rank, 0 if all are recorded, None otherwise."""
        if self.state not in (STARTED, ENDED):
            return None
        return 1 if any(self.exist(failure_files.ERROR_FILE)) else 0 if all(self.exist(RECORDED_FILE)) else None

    def end_script(self) -> None:
        """Let the other ranks of the node go on, or end where processes of the script were the ranks."""
        if self.rank == self.first:
            self.set_state(ENDED if self.state == STARTED else THEMSELVES)


def watch_processes(place: Place, joins: Callable[[], bool], stop_evidence: Callable[[], None]) -> None:
    """Watch the processes that the script starts before this rank joins a process group.

    Args:
        place: of this rank.
        joins: returns whether the script is in `init_process_group`.
        stop_evidence: called when another process takes this one's place as a rank.
    """
    import torch.distributed as dist

    start, is_first = BaseProcess.start, place.rank == place.first
    if is_first:
        (place.folder / STATE_FILE.format(place.first)).unlink(missing_ok=True)
        threading.Thread(target=_look_after, args=(place, joins, stop_evidence), daemon=True).start()

    def start_process(process: BaseProcess) -> None:
        if place.state != THEMSELVES and not dist.is_initialized():
            _replace_target(process, place) if is_first else wait_for_first(place, stop_evidence)
        start(process)

    BaseProcess.start = start_process  # type: ignore[method-assign, assignment]


def names_processes(source: str | None) -> bool:
    """Whether the text of a script shows that it may start processes of its own. ``source``: its path."""
    with suppress(OSError):
        return source is not None and b"multiprocessing" in Path(source).read_bytes()
    return False


def wait_for_first(place: Place, stop_evidence: Callable[[], None], patience: float = math.inf) -> None:
    """Wait until this rank may go on, or for ``patience`` seconds while nothing is decided.

    Where processes of the script are the ranks, end with the script.
    """
    (place.folder / WAITING_FILE.format(place.rank)).touch()
    until = time.monotonic() + patience
    while (state := place.state) == STARTED or (not state and time.monotonic() < until):
        if state:
            stop_evidence()
        time.sleep(POLL_SECONDS)
    if state == ENDED:
        exit_without_teardown(0)


@functools.cache
def _free_port() -> int:
    """Return a port that is reserved until this process ends."""
    return _reserved.enter_context(held_port())


def _replace_target(process: BaseProcess, place: Place) -> None:
    if target := vars(process).get("_target"):
        vars(process)["_target"] = StartedProcess(target, place, str(_free_port()))


def _look_after(place: Place, joins: Callable[[], bool], stop_evidence: Callable[[], None]) -> None:
    """Say when this rank joins, or has joined. Where its processes are the ranks, end a script that waits in vain:

    for a result of a process that has failed, or that was ended because its recording is complete.
    """
    import torch.distributed as dist

    while not place.state:
        if dist.is_initialized() or joins():
            place.set_state(THEMSELVES)
        time.sleep(POLL_SECONDS)
    if place.state != STARTED:
        return
    stop_evidence()
    while (status := place.status_of_started()) is None:
        time.sleep(POLL_SECONDS)
    if status:
        time.sleep(GRACE_SECONDS)
    else:
        place.end_script()
    for process in multiprocessing.active_children():  # a manager would outlive this one
        process.kill()
    exit_at_once(status)


@dataclass
class StartedProcess:
    """Function of a process that the script starts; the process is a rank from its `init_process_group` on.

    ``port``: a free one, in the place of torchrun's port, at which no rank could serve a store.
    """

    target: Callable[..., object]
    place: Place
    port: str

    def __call__(self, *args: Any, **options: Any) -> None:
        if os.environ.get("MASTER_PORT") == self.place.port:
            os.environ["MASTER_PORT"] = self.port
        os.environ[AGENT_STORE] = str(False)
        if os.environ.get(PARENT) == str(os.getppid()):  # not a server that forks
            end_with_parent()
        rank = _StartedRank(self.place) if "torch" in sys.modules else None
        try:
            self.target(*args, **options)
        except BaseException as error:
            if rank:
                rank.end(error)
            raise
        if rank:
            rank.end(None)


class _StartedRank:
    """This process, which a script has started, as the rank that it becomes when it joins."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rank: int | None = None
        self._groups: list[Any] = []  # when a group is freed torch may wait for a thread that waits for Python
        self._dist = importlib.import_module("torch.distributed")
        self._join = self._dist.init_process_group
        for name in ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh"):
            module = sys.modules.get(name)
            if hasattr(module, self._join.__name__):
                setattr(module, self._join.__name__, self._init_process_group)
        rebind_names([(self._join, self._init_process_group)])

    def _init_process_group(self, *args: Any, **options: Any) -> None:
        if self._rank is not None:
            self._join(*args, **options)
        else:
            self._begin(inspect.signature(self._join).bind(*args, **options).arguments)
            self._dist.init_process_group(*args, **options)  # with what a watcher has put around it
        self._groups.append(self._dist.group.WORLD)

    def _begin(self, arguments: dict[str, Any]) -> None:
        """Take the place of the rank that `init_process_group` is given: as an argument, in the address or by name."""
        address = dict(parse_qsl(urlparse(arguments.get("init_method") or "").query))
        rank, world = (
            int(given if (given := arguments.get(name, -1)) != -1 else address.get(name) or os.environ[name.upper()])
            for name in ("rank", "world_size")
        )
        place = self._place
        place.set_state(STARTED)
        if world != place.world:
            error = InvalidArgument("--nproc", place.world, f"the number of ranks that the script starts: {world}")
            write_error(place.folder, place.first, error)
            raise error
        waiting, until = place.folder / WAITING_FILE.format(rank), time.monotonic() + PATIENCE_SECONDS
        while rank != place.first and not waiting.exists() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        os.environ["RANK"] = str(rank)
        begin_rank(place.folder, rank, anew=False)
        self._rank = rank

    def end(self, error: BaseException | None) -> None:
        """Write how the rank ended, if this process is one. torch's function exits while it handles an error."""
        folder, rank = self._place.folder, self._rank
        if rank is None:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            end_rank(folder, rank)
            if getattr(error, "ends_script", False):
                (folder / RECORDED_FILE.format(rank)).touch()
            # `multiprocessing` ends forked processes in this way. Taking the interpreter down frees groups, too.
            multiprocessing.util._exit_function()  # type: ignore[attr-defined]
            exit_at_once(0)
        cause = (error.__context__ if isinstance(error, SystemExit) else None) or error
        print(write_error(folder, rank, cause), file=sys.stderr, end="", flush=True)
        stop_watcher()


def exit_at_once(status: int) -> NoReturn:
    """End the process, whatever its threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
