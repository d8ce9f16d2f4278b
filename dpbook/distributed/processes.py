"""Start real processes from anywhere, a notebook cell included, and bring their results back.

The processes are started by torchrun. A function from a notebook travels by value (cloudpickle). This module
itself loads no torch.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Program, Schedule
from dpbook.errors import InvalidArgument, RankFailed, check_int

_INSTALLED = "-packages" + os.sep  # site-packages, or Debian's dist-packages
_LIBRARY = str(Path(__file__).parents[1]) + os.sep

TASK, RESULT, ERROR, STACK = "task.pickle", "result-{}.pickle", "error-{}.json", "stack-{}.txt"

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
    copies = [np.array(buffer) for buffer in buffers]
    if not copies or any(copy.ndim != 1 for copy in copies):
        raise InvalidArgument("buffers", [copy.shape for copy in copies], "one 1-D array per rank")
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
    world = check_int("number of ranks", len(args), 1)
    if not callable(function):
        raise InvalidArgument("function", function, "callable")
    if not timeout > 0:
        raise InvalidArgument("timeout", timeout, "a positive number of seconds")
    with tempfile.TemporaryDirectory(prefix="dpbook-") as name:
        folder = Path(name)
        call = _by_value(function, list(args))
        (folder / TASK).write_bytes(cloudpickle.dumps({"path": sys.path, "timeout": timeout, "call": call}))
        status, said = _torchrun(folder, world, timeout + STARTUP)
        if echo:
            _print_output(folder, world)
        results = [folder / RESULT.format(rank) for rank in range(world)]
        if status != 0 or not all(result.exists() for result in results):
            raise RankFailed(_failure(folder, world, timeout, status, said))
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
    return module.__name__.partition(".")[0] in known or _INSTALLED in (getattr(module, "__file__", None) or "")


def _torchrun(folder: Path, world: int, timeout: float) -> tuple[int, str]:
    """Run the workers under torchrun; returns its exit status and what it said. It picks a free port itself."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command += ["--redirects=3", f"--log-dir={folder}", "-m", "dpbook.distributed.worker", str(folder)]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {
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
    """End the launcher, which ends its workers; if it will not, killing it ends them too (see `worker`)."""
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


def _failure(folder: Path, world: int, timeout: float, status: int, launcher_said: str) -> str:
    """Who died, or the first error in time, or where each rank was when time ran out, or what the launcher said."""
    deaths = _silent_deaths(folder, world, launcher_said) if status >= 0 else {}  # unless the launcher itself was ended
    for rank, code in deaths.items():
        return f"rank {rank} died: {_cause_of_death(code)}; the others were ended{_last_words(folder, rank)}"
    errors = {r: json.loads(p.read_text()) for r in range(world) if (p := folder / ERROR.format(r)).exists()}
    if errors:
        rank, first = min(errors.items(), key=lambda item: float(item[1]["time"]))
        return f"rank {rank} failed first: {first['type']}: {first['message']}\n\n{first['traceback'].rstrip()}"
    stacks = {r: stack for r in range(world) if (stack := _text(folder / STACK.format(r)))}
    if stacks:
        where = "\n".join(f"  rank {rank}: {_innermost(stack)}" for rank, stack in stacks.items())
        return f"no result after {timeout:g} s; the ranks were at\n{where}"
    finished = [r for r in range(world) if (folder / RESULT.format(r)).exists()]
    tail = "\n".join(launcher_said.strip().splitlines()[-15:])
    return f"a process ended without a word (finished: {finished} of {world} ranks); the launcher said\n{tail}"


def _silent_deaths(folder: Path, world: int, launcher_said: str) -> dict[int, int]:
    """The exit codes of the ranks that neither finished nor said why, and that the launcher did not end itself."""
    report = re.findall(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+) \(pid: (\d+)\)", launcher_said)
    ended = set(re.findall(r"Sending process (\d+) closing signal", launcher_said))
    exits = {int(rank): (int(code), pid in ended) for rank, code, pid in report}
    deaths = {}
    for rank in range(world):
        begun = (folder / STACK.format(rank)).exists()
        code, excused = exits.get(rank, (0, not begun))  # the launcher does not report status 0
        left = [folder / name.format(rank) for name in (RESULT, ERROR, STACK)]
        spoke = any(path.exists() and path.stat().st_size for path in left)
        if not excused and (code < 0 or not spoke):
            deaths[rank] = code
    return deaths


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _last_words(folder: Path, rank: int) -> str:
    """The end of what a rank wrote to stderr, on lines of its own."""
    said = "".join(map(_text, folder.glob(f"*/attempt_0/{rank}/stderr.log"))).strip().splitlines()[-15:]
    return "\n".join(["; its last words were", *said]) if said else ""


def _cause_of_death(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit status {code}"


def _innermost(stack: str) -> str:
    """The innermost frame of a faulthandler dump that is neither an installed package's nor the library's own."""
    main_thread = re.split(r"hread 0x", stack)[-1]  # threads are listed from the youngest to the oldest
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', main_thread)
    for file, line, function in frames:
        if _INSTALLED not in file and not file.startswith(_LIBRARY):
            return f"line {line} of {function}"
    return f"line {frames[0][1]} of {frames[0][2]}" if frames else "an unknown place"
