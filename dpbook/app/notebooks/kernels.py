"""Kernels that start at once, as ranks do: forked from a server that has loaded what most notebooks load.

For comparison alone. Outputs are stored by kernels that are started by themselves, where an import that is missing from
a notebook cannot go unnoticed.
"""

import contextlib
import multiprocessing.process
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpbook.core import PARENT, temporary_folder
from dpbook.core.fork_server import Starter

_LOADED = ("ipykernel.kernelapp", "matplotlib.pyplot", "torch", "torch._dynamo")
_MAIN = "dpbook.app.notebooks.kernels"
_BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
"""Environment variable that a kernel sets before matplotlib is imported."""
_CONNECTION, _FOLDER = "connection.json", "folder"

_KERNELS = Starter(*_LOADED)


@contextlib.contextmanager
def shared(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Return ``environment``, made so that all processes that get it can fork their kernels from one server."""
    with _KERNELS.share({**environment, **_BACKEND}) as variables:
        yield {**environment, **variables}


def are_shared() -> bool:
    """Whether this process has such a server."""
    return _KERNELS.is_shared({**os.environ, **_BACKEND})


class Kernel:
    """A kernel that runs in ``folder``, and a client of it (``client``). Raises `RuntimeError` if it does not start."""

    def __init__(self, folder: Path, startup_timeout: float) -> None:
        from jupyter_client.blocking import BlockingKernelClient
        from jupyter_client.connect import write_connection_file

        self._stack = contextlib.ExitStack()
        self._folder = own = self._stack.enter_context(temporary_folder("kernel"))
        connection = own / _CONNECTION
        write_connection_file(str(connection), ip=str(own / "socket"), transport="ipc")
        (own / _FOLDER).write_text(str(folder))
        self._running = _KERNELS.begin(_MAIN, own, 1, {**os.environ, **_BACKEND})
        self._stack.callback(self._running.end)
        self.client: Any = BlockingKernelClient(connection_file=str(connection))
        self._stack.callback(self.client.stop_channels)
        self.client.load_connection_file()
        self.client.start_channels(hb=False)  # a server that has yet to load does not beat
        try:
            self.client.wait_for_ready(timeout=startup_timeout)
        except RuntimeError:
            self.stop()
            raise

    def is_alive(self) -> bool:
        return not self._running.wait(0)

    def interrupt(self) -> None:
        """Interrupt the kernel as the stop button does."""
        self.client.control_channel.send(self.client.session.msg("interrupt_request", {}))

    def stop(self) -> None:
        """Kill the kernel and the processes that it started; clean up even if it has already ended."""
        self._stack.close()


def main(folder: Path) -> int:
    """Run a kernel in this process, as if it had been started by itself."""
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    _begin_as_main()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", PARENT):
        os.environ.pop(name, None)
    os.chdir((folder / _FOLDER).read_text())
    # Where IPython puts the notebook's folder, unless Python was started without any (-P), as the server was.
    sys.path.insert(next((n for n, path in enumerate(sys.path) if path.endswith("-packages")), 0), "")
    sys.argv = ["ipykernel_launcher", "-f", str(folder / _CONNECTION)]
    IPKernelApp.launch_instance()
    return 0


def _begin_as_main() -> None:
    """Make this process look to multiprocessing like a main process."""
    process: Any = multiprocessing.process
    process._parent_process = None
    own = process.current_process()
    own._name, own._identity = "MainProcess", ()
