"""Ranks as real processes, started from anywhere, a notebook cell included; their results are brought back.

A function from a notebook is pickled by value (cloudpickle). This module itself loads no torch.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Program, Schedule
from dpbook.collectives.algebras import check_buffers
from dpbook.collectives.programs import copy_buffers
from dpbook.core import (
    PACKAGE,
    InvalidArgument,
    RankFailed,
    check_float,
    check_int,
    machine,
    pickle_by_value,
    temporary_folder,
)
from dpbook.core.fork_server import SHARED_SERVERS, STDOUT, StartedProcesses, Starter
from dpbook.ranks.failure_files import RESULT_FILE, TASK_FILE, cause_of_failure

if TYPE_CHECKING:
    import torch

STARTUP_SECONDS = 120.0
"""Seconds beyond the timeout of the program in which torch loads on a busy machine."""

_WORKER = "dpbook.ranks.worker"
_sharing_here: dict[str, str] = {}
"""Environment for processes that start ranks through the server of this one; empty until `begin` is called."""
_at_exit = ExitStack()
atexit.register(_at_exit.close)
_RANKS = Starter("torch", "torch._dynamo", _WORKER)  # the first optimizer of torch that is made loads torch._dynamo


def run(
    program: Program | Schedule,
    buffers: Sequence[NDArray[Any]] | NDArray[Any],
    *,
    join: Callable[[], torch.device] | None = None,
    timeout: float = 60.0,
) -> list[NDArray[Any]]:
    """Run a rank program or a schedule over real processes, one per buffer, and return each rank's buffer.

    It has the arguments of `dpbook.collectives.run`, and runs in other processes of this machine (gloo). Buffers are
    1-D arrays, which are not changed; for a schedule all of one size and dtype. ``join`` joins a process group in each
    rank and returns the device on which its buffer is to lie: with ``join=join_accelerator`` the buffers of a schedule
    lie on the accelerators of the ranks, whose backend carries the messages.

    Raises `RankFailed` with the error of the first rank that fails, or with the line that each rank had reached after
    ``timeout`` seconds.
    """
    if not isinstance(program, Schedule) and not callable(program):
        raise InvalidArgument("program", program, "a rank program or a Schedule")
    if join and not isinstance(program, Schedule):
        raise InvalidArgument("program", program, "a Schedule: on an accelerator no rank program runs")
    copies = copy_buffers(check_buffers(program, buffers) if isinstance(program, Schedule) else buffers)
    return start(_run_on_this_rank, [(program, copy, join) for copy in copies], timeout=timeout)


def _run_on_this_rank(
    program: Program | Schedule, x: NDArray[Any], join: Callable[[], torch.device] | None
) -> NDArray[Any]:
    from dpbook.ranks.messages import execute

    if join is None:
        execute(program, x)
        return x
    import torch

    device = join()
    if not isinstance(device, torch.device):
        raise InvalidArgument("join", device, "a function that returns the torch.device of the rank's buffer")
    buffer = torch.from_numpy(x).to(device)
    execute(program, buffer)
    return np.asarray(buffer.cpu())


def start(
    function: Callable[..., Any], args: Sequence[tuple[Any, ...]], *, timeout: float = 180.0, echo: bool = True
) -> list[Any]:
    """Call ``function(*args[rank])`` in one process per entry of ``args``, inside a gloo process group.

    Returns the result of each rank. With ``echo`` the output of the ranks is printed afterwards, rank by rank. When a
    rank fails the others are ended. All ranks are ended ``timeout`` seconds after they have joined the group; a program
    that trains for ten seconds may take a minute on a busy machine. No process is left running, also after an
    interrupt. Raises `RankFailed`.
    """
    if not isinstance(args, Sequence) or not all(isinstance(arguments, Sequence) for arguments in args):
        raise InvalidArgument("args", args, "a tuple of arguments per rank")
    world = check_int("number of ranks", len(args), 1)
    if not callable(function):
        raise InvalidArgument("function", function, "callable")
    timeout = check_float("timeout", timeout, above=0)
    import cloudpickle  # not at import: a launch of a script does not need it

    with temporary_folder("ranks") as folder:
        functions = [function, *(argument for group in args for argument in group)]
        call = pickle_by_value("function and its args", (function, list(args)), *functions)
        (folder / TASK_FILE).write_bytes(cloudpickle.dumps({"timeout": timeout, "call": call}))
        exits, launcher_output = _RANKS.run(_WORKER, folder, world, _environment(os.environ), timeout + STARTUP_SECONDS)
        for rank in range(world) if echo else ():
            log = folder / STDOUT.format(rank)
            for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
                if not line.startswith("[Gloo] Rank "):  # torch 2.9 has gloo announce every group on standard output
                    print(f"[rank {rank}] {line}")
        results = [folder / RESULT_FILE.format(rank) for rank in range(world)]
        if sorted(exits) != list(range(world)) or any(exits.values()) or not all(path.exists() for path in results):
            raise RankFailed(cause_of_failure(folder, world, timeout, exits, launcher_output))
        return [cloudpickle.loads(result.read_bytes()) for result in results]


def begin(module: str, folder: Path) -> StartedProcesses:
    """Begin ``module.main(folder)`` in a process that has loaded torch, and that starts ranks through the same server.

    See `dpbook.core.fork_server.Starter.begin`.
    """
    environment = _environment(os.environ)
    if SHARED_SERVERS not in environment and not _sharing_here:
        _sharing_here.update(_at_exit.enter_context(_RANKS.share(environment)))
    return _RANKS.begin(module, folder, 1, {**environment, **_sharing_here})


@contextmanager
def shared(environment: Mapping[str, str], *more: str) -> Iterator[dict[str, str]]:
    """Yield an environment in which all processes start their ranks through one server.

    The server starts when the first of them starts ranks, loads the modules ``more`` too, and ends with this context.
    If the system does not let it fork, the environment is yielded unchanged.
    """
    with _RANKS.share(_environment(environment), *more) as variables:
        yield {**environment, **variables}


def _forget() -> None:
    """Leave the shared server to the parent, after a fork."""
    _sharing_here.clear()
    _at_exit.pop_all()


os.register_at_fork(after_in_child=_forget)


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    root = str(PACKAGE.parent)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    defaults = machine.MALLOC_SETTINGS | machine.ONE_THREAD | {"GLOO_SOCKET_IFNAME": loopback}
    path = [entry for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", root)]
    return {**defaults, **base, "PYTHONPATH": os.pathsep.join([root, *path])}


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a free TCP port while the block runs; any process may listen on it that is given its number.

    Between the choice of a free port and the moment in which a process that must still load torch listens on it, the
    system may give it to another connection. Linux does not do so while a socket that may share its port is bound to it
    and does not listen. On other systems the port is chosen and not reserved.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port
