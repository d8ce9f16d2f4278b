"""Starter of processes that begin at once, since a server that has loaded their modules forks them.

Each start makes new processes with the environment, working directory and module path that the caller has then. On
systems other than Linux it is not safe to fork a process that has loaded torch; there every process loads its modules
itself.
"""

import atexit
import contextlib
import gc
import hashlib
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NamedTuple

from dpbook.core.files import PACKAGE, temporary_folder
from dpbook.core.processes import PARENT

LAUNCHER_LOG = "starter.txt"
"""File in the folder of a start: output of the launcher, the process that started the others."""
STDOUT, STDERR = "attempt_0/{}/stdout.log", "attempt_0/{}/stderr.log"
"""Files in the folder of a start: output of one process, by its number, where torchrun puts it too."""
START_METHOD = "fork" if sys.platform == "linux" else "spawn"
"""How processes are started here, as `multiprocessing` names it."""
SHARED_SERVERS = "DPBOOK_SHARED_SERVERS"
"""Environment variable with a folder of sockets; each leads to a server for all processes with the same settings."""

_READ_WHEN_LOADED = (
    "ATEN_", "GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON",
    "PYTORCH_", "TORCH",
)  # fmt: skip
"""Beginnings of variables that are read when a program or a library is loaded. If one has changed, a new server is
started; all other variables have the value that the caller has at the start."""
_SET_BY_TORCH = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""Variables that torch sets when its compiler is loaded, as by a checkpoint, and reads anew in each use."""

_SHUTDOWN_TIMEOUT = 10.0
"""Seconds for a launcher to end its processes: twice `server.SHUTDOWN_TIMEOUT`."""
_LOG_BYTES = 2**16
"""Size of the beginning of a server's output that is read."""


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]
    settings: dict[str, str]


class StartedProcesses:
    """Processes of one start; ``launcher``, which has forked them, is readable when `wait` would return True."""

    def __init__(self, launcher: Connection, folder: Path, server_log: IO[bytes] | None) -> None:
        self.launcher, self._folder, self._server_log = launcher, folder, server_log

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds; return True if all processes have ended, or one has failed."""
        try:
            return self.launcher.poll(timeout)
        except OSError:  # the launcher was killed
            return True

    def end(self) -> tuple[dict[int, int], str]:
        """End the processes that still run, and return what `Starter.run` returns."""
        exits: dict[int, int] = {}
        with self.launcher as launcher:
            with contextlib.suppress(OSError):
                launcher.send("end")
            with contextlib.suppress(OSError, EOFError):  # the launcher was killed
                if launcher.poll(_SHUTDOWN_TIMEOUT):
                    exits = launcher.recv()
        log, output = self._folder / LAUNCHER_LOG, b""
        if log.exists():
            output = log.read_bytes()
        elif self._server_log:
            output = os.pread(self._server_log.fileno(), _LOG_BYTES, 0)
        return exits, output.decode(errors="replace")


class Starter:
    """Starter of processes in which the modules ``preload`` are loaded. It costs nothing before its first start.

    Threads may share a starter. A forked process gets a server of its own. A server ends with the process that started
    it, and all processes that it has started end with it. In an environment from `share` the shared server is used.
    """

    _server: _Server | None

    def __init__(self, *preload: str, method: str = START_METHOD) -> None:
        self._arguments = [method, *(preload if method == "fork" else ())]
        self._loads = self._arguments
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.stop)

    def run(
        self, module: str, folder: Path, world: int, environment: Mapping[str, str], timeout: float
    ) -> tuple[dict[int, int], str]:
        """Call ``module.main(folder)``, which returns an exit status, in ``world`` processes with torchrun's variables.

        When one fails the others are ended. After ``timeout`` seconds, or by an interrupt, all are. The processes that
        they have started end with them. Their output is in ``folder``, where torchrun puts it too.

        Returns the exit status of each process that ended by itself, in the order in which they did, and the output of
        their launcher.
        """
        started = self.begin(module, folder, world, environment)
        try:
            started.wait(timeout)
        finally:
            ended = started.end()
        return ended

    def begin(self, module: str, folder: Path, world: int, environment: Mapping[str, str]) -> "StartedProcesses":
        """Start processes as `run` does, without waiting for them. They end at the latest with this process."""
        call = (module, folder, world, os.getcwd(), sys.path, dict(environment))
        server = None
        launcher = self._shared_launcher(environment)
        if launcher is None:
            launcher, theirs = multiprocessing.Pipe()
            with theirs:
                server = self._request_launcher(theirs.fileno(), environment)
        with contextlib.suppress(OSError):
            launcher.send(call)
        return StartedProcesses(launcher, folder, server.log if server else None)

    @contextlib.contextmanager
    def share(self, environment: Mapping[str, str], *more: str) -> Iterator[dict[str, str]]:
        """Share one server among all processes with the settings of ``environment``.

        The server starts at the first request and loads the modules ``more`` too, which costs little for one server.
        Yields the environment variable that leads the processes to it. When the context ends the server ends, with all
        processes that it has started.

        If ``environment`` leads to a shared server with the same settings already, that one is used. Nothing is shared,
        and {} is yielded, if processes are not forked or if the path of a temporary folder is too long for a socket.
        """
        if self._arguments[0] != "fork":
            yield {}
            return
        existing = _shared_folder(environment)
        own_folder = contextlib.nullcontext(existing) if existing else temporary_folder("servers")
        with own_folder as folder, socket.socket(socket.AF_UNIX) as listener:
            path = folder / self._socket_name(environment)
            try:
                listener.bind(str(path))
            except OSError:
                yield {}
                return
            listener.listen()
            self._loads = [*self._arguments, *more]
            passing_on = threading.Thread(target=self._pass_on, args=(listener, environment), daemon=True)
            passing_on.start()
            try:
                yield {SHARED_SERVERS: str(folder)}
            finally:
                with contextlib.suppress(OSError):  # a server could not be started
                    listener.shutdown(socket.SHUT_RDWR)
                passing_on.join()
                self.stop()
                path.unlink(missing_ok=True)

    def is_shared(self, environment: Mapping[str, str]) -> bool:
        """Return True if the environment of this process leads to a server for these settings."""
        folder = _shared_folder(os.environ)
        return folder is not None and (folder / self._socket_name(environment)).exists()

    def _pass_on(self, listener: socket.socket, environment: Mapping[str, str]) -> None:
        """Pass on requests until the listener is shut down or no server can start; callers then start their own."""
        with contextlib.suppress(OSError), listener:
            while True:
                caller, _ = listener.accept()
                with caller:
                    try:
                        self._request_launcher(caller.fileno(), environment)
                    except OSError:
                        listener.close()  # before the caller learns of it, after which others may connect
                        raise

    def _shared_launcher(self, environment: Mapping[str, str]) -> Connection | None:
        """Return a launcher of the server that is shared for these settings; None if there is none."""
        folder = _shared_folder(os.environ)
        if folder is None:
            return None
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(str(folder / self._socket_name(environment)))
            except OSError:
                return None
            return Connection(caller.detach())

    def _socket_name(self, environment: Mapping[str, str]) -> str:
        server = repr((sys.executable, self._arguments, sorted(_settings(environment).items())))
        return hashlib.sha256(server.encode()).hexdigest()[:16]

    def _request_launcher(self, file: int, environment: Mapping[str, str]) -> _Server:
        """Have this starter's server fork a launcher that listens to an open file."""
        with self._lock:
            server = self._server = self._current_server(dict(environment))
            with contextlib.suppress(OSError):  # the server was killed just now, which the caller will notice
                socket.send_fds(server.control, [b"+"], [file])
        return server

    def stop(self) -> None:
        """End the server at once, with all processes that it has started. A later start begins a new server."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.control.close()
            server.process.kill()
            server.process.wait()

    def _current_server(self, environment: dict[str, str]) -> _Server:
        """Return the server; start one if there is none, it has ended, or it was loaded with other settings."""
        settings, server = _settings(environment), self._server
        if server is not None:
            if server.process.poll() is None and server.settings == settings:
                return server
            server.control.close()  # it ends when all processes that it has started have ended
            threading.Thread(target=server.process.wait, daemon=True).start()
        return _serve(self._loads, environment, settings)

    def _reset(self) -> None:
        """Begin without a server, also in a forked process, since the server belongs to its parent."""
        self._lock = threading.Lock()
        self._server = None


def _shared_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of sockets that the environment names; None if another user has made one of that name since."""
    with contextlib.suppress(KeyError, OSError):
        folder = Path(environment[SHARED_SERVERS])
        if folder.stat().st_uid == os.getuid():
            return folder
    return None


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a server must have been loaded with."""
    names = (name for name in environment if name.startswith(_READ_WHEN_LOADED) and name not in _SET_BY_TORCH)
    return {name: environment[name] for name in names}


def _serve(arguments: Sequence[str], environment: dict[str, str], settings: dict[str, str]) -> _Server:
    """Start a server. Requests wait in a socket until it has loaded its modules."""
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    command = [sys.executable, "-P", "-m", "dpbook.core.fork_server.server", str(theirs.fileno()), *arguments]
    path = [str(PACKAGE.parent), *(str(Path(entry).absolute()) for entry in sys.path)]
    with theirs:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()],
            env=environment | {"PYTHONPATH": os.pathsep.join(path), PARENT: str(os.getpid())}, start_new_session=True,
        )  # fmt: skip
    return _Server(process, ours, log, settings)


def preload(modules: Iterable[str]) -> None:
    """Import modules before the first fork, in a state that forked processes copy as little of as possible.

    A module that cannot be imported is printed and left out: the process that needs it will raise.
    """
    gc.disable()  # modules are not garbage, and searching them for it takes a quarter of the time
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        # torch has 200 of these, which would take a tenth of a second at the end of each process.
        finalizer.atexit = False
    gc.freeze()  # a collection would copy the memory of these objects, in every process
    gc.enable()
