"""Server of a `starter.Starter`: a process that has loaded modules and forks the processes that need them.

For each start the server forks a launcher, which adopts the state of the caller and forks the ranks. Each process ends
with the one that forked it.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing import Process, active_children
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from dpbook.core.fork_server.starter import LAUNCHER_LOG, STDERR, STDOUT, preload
from dpbook.core.processes import PARENT, end_with_parent, exit_without_teardown

POLL_SECONDS = 0.5
"""Interval at which the server looks for changes without an event, such as the end of its parent."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds in which a process may end by itself."""


def serve(control: socket.socket) -> None:
    """Fork a launcher for each connection that arrives, until the caller closes ``control`` or has ended."""
    caller = int(os.environ[PARENT])
    os.environ[PARENT] = str(os.getpid())
    os.register_at_fork(after_in_child=control.close)
    is_open = True
    while os.getppid() == caller and (is_open or active_children()):
        ready = wait(
            [*([control] if is_open else []), *(launcher.sentinel for launcher in active_children())], POLL_SECONDS
        )
        if control in ready:
            message, files, _, _ = socket.recv_fds(control, 1, 1)
            is_open = bool(message)
            for file in files:
                with Connection(file) as connection:
                    Process(target=_launch, args=(connection,)).start()
    for group in [launcher.pid for launcher in active_children() if launcher.pid]:  # the caller has ended
        with contextlib.suppress(ProcessLookupError):  # the launcher is about to begin, and will end with this process
            os.killpg(group, signal.SIGKILL)


def _launch(caller: Connection) -> None:
    """Start ranks; end them all when one fails, or when the caller asks for it or is gone; send their exit statuses."""
    end_with_parent()
    os.setsid()  # a process group that is killed at the end
    os.register_at_fork(after_in_child=caller.close)
    module, folder, world, cwd, path, environment = caller.recv()
    os.chdir(cwd)
    sys.path[:] = path
    parent = {PARENT: os.environ[PARENT]}
    os.environ.clear()
    os.environ.update(environment | parent)
    _write_to(folder / LAUNCHER_LOG, folder / LAUNCHER_LOG)
    exits: dict[int, int] = {}
    ranks = [Process(target=_rank, args=(module, folder, rank, world)) for rank in range(world)]
    try:
        for rank in ranks:
            rank.start()
        while len(exits) < world and not any(exits.values()):
            running = [process.sentinel for rank, process in enumerate(ranks) if rank not in exits]
            if caller in wait([caller, *running], POLL_SECONDS):
                break
            codes = {rank: process.exitcode for rank, process in enumerate(ranks)}
            exits |= {rank: code for rank, code in codes.items() if code is not None and rank not in exits}
    except Exception:  # such as the limit of processes
        traceback.print_exc()
    _end(active_children())
    for group in [rank.pid for rank in ranks if rank.pid]:  # a rank may have begun a group of its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    try:
        caller.send(exits)
    finally:
        os.killpg(0, signal.SIGKILL)  # this process, and those that the ranks have left running


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT
    for process in processes:
        process.join(max(0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _rank(module: str, folder: Path, rank: int, world: int) -> None:
    end_with_parent()
    _write_to(folder / STDOUT.format(rank), folder / STDERR.format(rank))
    for name, value in ("RANK", rank), ("WORLD_SIZE", world):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(value)
    # Forking copies state that a fresh process does not have: a chosen start method, and the same random state in all.
    multiprocessing.set_start_method(None, force=True)
    tempfile.tempdir = None  # to be read from the caller's environment, like the time zone
    time.tzset()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    exit_without_teardown(importlib.import_module(module).main(folder))


def _write_to(stdout: Path, stderr: Path) -> None:
    """Send the output of this process to files, also that of C code."""
    for path, number in (stdout, 1), (stderr, 2):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    preload(sys.argv[3:])
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    serve(control)
    os._exit(0)  # multiprocessing would wait for processes that still run
