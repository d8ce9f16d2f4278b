"""Start real processes from anywhere, a notebook cell included, and bring their results back.

The processes are started by torchrun. A function from a notebook travels by value (cloudpickle). This module
itself loads no torch.
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
from numpy.typing import NDArray

from dpbook.collectives import Program, Schedule
from dpbook.collectives.comm import check_timeout, copy_buffers
from dpbook.distributed.lifetime import PARENT
from dpbook.distributed.traces import INSTALLED, RESULT, TASK, why_it_failed
from dpbook.errors import InvalidArgument, RankFailed, check_int
from dpbook.text import plural

STARTUP = 120.0
"""Seconds that the launcher and the imports may take on a busy machine, beyond the time-out of the program."""


def run(
    program: Program | Schedule, buffers: Sequence[NDArray[Any]] | NDArray[Any], *, timeout: float = 60.0
) -> list[NDArray[Any]]:
    """Run a rank program or a schedule over real processes, one per buffer, and return each rank's buffer.

    The same call as `dpbook.collectives.run`, in other processes (gloo, this machine). ``buffers`` holds 1-D
    arrays; they are not changed. Raises `RankFailed` with the first failing rank's error, or with the line that
    each rank had reached after ``timeout`` seconds.
    """
    if not isinstance(program, Schedule) and not callable(program):
        raise InvalidArgument("program", program, "a rank program or a Schedule")
    copies = copy_buffers(buffers)
    if isinstance(program, Schedule) and program.world != len(copies):
        raise InvalidArgument(
            "buffers", plural(len(copies), "buffer"), f"one per rank of the schedule, {program.world}"
        )
    return start(_run_on_this_rank, [(program, copy) for copy in copies], timeout=timeout)


def _run_on_this_rank(program: Program | Schedule, x: NDArray[Any]) -> NDArray[Any]:
    from dpbook.distributed.comm import ProcessComm
    from dpbook.distributed.execute import execute

    if isinstance(program, Schedule):
        execute(program, x)
    else:
        program(ProcessComm(), x)
    return x


def start(
    function: Callable[..., Any], args: Sequence[tuple[Any, ...]], *, timeout: float = 60.0, echo: bool = True
) -> list[Any]:
    """Call ``function(*args[rank])`` in one process per entry of ``args``, inside a gloo process group.

    Returns what each rank returned. What the ranks printed is printed afterwards, rank by rank, unless ``echo`` is
    False. When a rank fails the others are ended; nothing is left running, also after an interrupt.
    Raises `RankFailed`.
    """
    if not isinstance(args, Sequence) or not all(isinstance(arguments, Sequence) for arguments in args):
        raise InvalidArgument("args", args, "a tuple of arguments per rank")
    world = check_int("number of ranks", len(args), 1)
    if not callable(function):
        raise InvalidArgument("function", function, "callable")
    timeout = check_timeout(timeout)
    with tempfile.TemporaryDirectory(prefix="dpbook-") as name:
        folder = Path(name)
        call = _by_value(function, list(args))
        (folder / TASK).write_bytes(cloudpickle.dumps({"path": sys.path, "timeout": timeout, "call": call}))
        status, said = _torchrun(folder, world, timeout + STARTUP)
        if echo:
            _print_output(folder, world)
        results = [folder / RESULT.format(rank) for rank in range(world)]
        if status != 0 or not all(result.exists() for result in results):
            raise RankFailed(why_it_failed(folder, world, timeout, status, said))
        return [cloudpickle.loads(result.read_bytes()) for result in results]


def _by_value(function: Callable[..., Any], args: list[tuple[Any, ...]]) -> bytes:
    """Pickle a call. Functions of a module that other processes may not be able to import go by value."""
    modules = {inspect.getmodule(f) for f in (function, *(a for group in args for a in group if callable(a)))}
    local = [module for module in modules if module is not None and not _is_installed(module)]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((function, args)))
    except Exception as error:  # whatever an object raises that cannot travel
        raise InvalidArgument("function and its args", function, f"possible to pickle ({error})") from error
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Whether every process can import a module: one of Python's, an installed one or one of dpbook."""
    known = sys.stdlib_module_names | {"dpbook", "__main__"}
    return module.__name__.partition(".")[0] in known or INSTALLED in (getattr(module, "__file__", None) or "")


def _torchrun(folder: Path, world: int, timeout: float) -> tuple[int, str]:
    """Run the workers under torchrun; returns its exit status and what it said. It picks a free port itself."""
    command = [sys.executable, "-m", "dpbook.distributed.launcher", "--standalone", f"--nproc-per-node={world}"]
    command += ["--redirects=3", f"--log-dir={folder}", "-m", "dpbook.distributed.worker", str(folder)]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {
        PARENT: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", _loopback()),
    }
    with open(folder / "launcher.txt", "w+") as log:
        launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            status = launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            _end(launcher)
        log.seek(0)
        return status, log.read()


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its workers; if it will not, it is killed, which on Linux ends them too.

    Elsewhere workers whose launcher had to be killed go on until their time is up (see `lifetime` and `worker`).
    """
    if launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
        try:
            launcher.wait(5)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()


def _print_output(folder: Path, world: int) -> None:
    for rank in range(world):
        for log in sorted(folder.glob(f"*/attempt_0/{rank}/stdout.log")):
            for line in log.read_text(errors="replace").splitlines():
                print(f"[rank {rank}] {line}")
