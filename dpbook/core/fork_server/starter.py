"""Processes that start at once: they are forked from a server that has loaded their modules already.

Each start gets fresh processes, with the environment, working folder and module path that the caller has then. Linux
only: elsewhere it is not safe to fork a process that has loaded torch, and every process loads its modules itself.
"""

import atexit
import contextlib
import hashlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NamedTuple

from dpbook.core.files import PACKAGE
from dpbook.core.processes import PARENT
from dpbook.core.scratch import temporary_folder

LOG = "starter.txt"
"""File in a start's folder: output of the process that started the others."""
STDOUT, STDERR = "attempt_0/{}/stdout.log", "attempt_0/{}/stderr.log"
"""Files in a start's folder: output of one process, by its number, where torchrun would put it."""
METHOD = "fork" if sys.platform == "linux" else "spawn"
SHARED = "DPBOOK_SHARED_SERVERS"
"""The variable that names a folder of sockets. Behind each waits a server for everyone with the same settings."""

_READ_WHEN_LOADED = (
    "ATEN_", "GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON",
    "PYTORCH_", "TORCH",
)  # fmt: skip
"""How variables begin that take effect when a program or a library is loaded: where one has changed, a new server is
started. All others reach the processes as they are when these start."""
_SET_BY_TORCH = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""No such setting: torch sets it where its compiler is loaded, as by a checkpoint, and reads it anew in each use."""

_PATIENCE = 10.0  # seconds for a launcher to end its processes: twice what they are given
_LOG_BYTES = 2**16


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]
    settings: dict[str, str]


class Started:
    """Processes of one start."""

    def __init__(self, launcher: Connection, folder: Path, server_log: IO[bytes] | None) -> None:
        self._launcher, self._folder, self._server_log = launcher, folder, server_log

    def wait(self, timeout: float) -> bool:
        """Whether within ``timeout`` seconds all have ended, or one has failed."""
        try:
            return self._launcher.poll(timeout)
        except OSError:  # the launcher was killed
            return True

    @property
    def launcher(self) -> Connection:
        """A connection that is readable when `wait` would return True."""
        return self._launcher

    def end(self) -> tuple[dict[int, int], str]:
        """End what is left of them. See `Starter.run` for what is returned."""
        exits: dict[int, int] = {}
        with self._launcher as launcher:
            with contextlib.suppress(OSError):
                launcher.send("end")
            with contextlib.suppress(OSError, EOFError):  # it was killed
                if launcher.poll(_PATIENCE):
                    exits = launcher.recv()
        return exits, self._said().decode(errors="replace")

    def _said(self) -> bytes:
        log = self._folder / LOG
        if log.exists():
            return log.read_bytes()
        return os.pread(self._server_log.fileno(), _LOG_BYTES, 0) if self._server_log else b""


class Starter:
    """Starts processes in which ``preload`` is loaded. Costs nothing before its first start.

    Threads may share one. A forked process gets a server of its own. A server ends with the process that started it,
    and all that it has started ends with it. Where `share` has told of a server, that one is used.
    """

    _server: _Server | None

    def __init__(self, *preload: str, method: str = METHOD) -> None:
        self._arguments = [method, *(preload if method == "fork" else ())]
        self._loads = self._arguments
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def run(
        self, module: str, folder: Path, world: int, environment: Mapping[str, str], timeout: float
    ) -> tuple[dict[int, int], str]:
        """Call ``module.main(folder)``, which returns an exit status, in ``world`` processes, as torchrun would.

        When one fails the others are ended, and so are all after ``timeout`` seconds and by an interrupt; what they
        have started goes with them. Their output is in ``folder``, where torchrun would put it.
        Returns the exit status of each that ended by itself, in the order in which they did, and what their launcher
        had to say.
        """
        started = self.begin(module, folder, world, environment)
        try:
            started.wait(timeout)
        finally:
            ended = started.end()
        return ended

    def begin(self, module: str, folder: Path, world: int, environment: Mapping[str, str]) -> "Started":
        """The same, without waiting for them. They end at the latest with this process."""
        call = (module, folder, world, os.getcwd(), sys.path, dict(environment))
        server = None
        launcher = self._shared_launcher(environment)
        if launcher is None:
            launcher, theirs = multiprocessing.Pipe()
            with theirs:
                server = self._ask(theirs.fileno(), environment)
        with contextlib.suppress(OSError):
            launcher.send(call)
        return Started(launcher, folder, server.log if server else None)

    @contextlib.contextmanager
    def share(self, environment: Mapping[str, str], *more: str) -> Iterator[dict[str, str]]:
        """Let all processes with the settings of ``environment`` use one server, started when the first of them asks.

        It loads ``more`` besides: for one server that costs little. Yields the variable that tells the processes of it.
        In the end the server ends, with all that it has started.
        Where ``environment`` tells of one with the same settings already, that one is used. Nothing is shared where
        nothing is forked, and where the path of a temporary folder is too long for a socket.
        """
        if self._arguments[0] != "fork":
            yield {}
            return
        with _folder_of_sockets(environment) as folder, socket.socket(socket.AF_UNIX) as listener:
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
                yield {SHARED: str(folder)}
            finally:
                with contextlib.suppress(OSError):  # a server could not be started
                    listener.shutdown(socket.SHUT_RDWR)
                passing_on.join()
                self.stop()
                path.unlink(missing_ok=True)

    def is_shared(self, environment: Mapping[str, str]) -> bool:
        """Whether this process has been told of a server for these settings."""
        folder = _sockets(os.environ)
        return folder is not None and (folder / self._socket_name(environment)).exists()

    def _pass_on(self, listener: socket.socket, environment: Mapping[str, str]) -> None:
        """Until it is no longer shared, or a server cannot be started. Who asks then starts its own."""
        with contextlib.suppress(OSError), listener:
            while True:
                caller, _ = listener.accept()
                with caller:
                    try:
                        self._ask(caller.fileno(), environment)
                    except OSError:
                        listener.close()  # before the caller is told, as then others may ask
                        raise

    def _shared_launcher(self, environment: Mapping[str, str]) -> Connection | None:
        """A launcher of the server that is shared for these settings, if there is one."""
        folder = _sockets(os.environ)
        if folder is None:
            return None
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(str(folder / self._socket_name(environment)))
            except OSError:
                return None
            return Connection(caller.detach())

    def _socket_name(self, environment: Mapping[str, str]) -> str:
        told = repr((sys.executable, self._arguments, sorted(_settings(environment).items())))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def _ask(self, file: int, environment: Mapping[str, str]) -> _Server:
        """Have the own server fork a launcher that listens to this open file."""
        with self._lock:
            server = self._server = self._serving(dict(environment))
            with contextlib.suppress(OSError):  # it was killed just now, as the caller will notice
                socket.send_fds(server.control, [b"+"], [file])
        return server

    def stop(self) -> None:
        """End the server at once, with all that it has started. A later start begins a new one."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.control.close()
            server.process.kill()
            server.process.wait()

    def _serving(self, environment: dict[str, str]) -> _Server:
        """The server, started if there is none, if it has ended, and if it was loaded with other settings."""
        settings, server = _settings(environment), self._server
        if server is not None:
            if server.process.poll() is None and server.settings == settings:
                return server
            server.control.close()  # then it ends, but not before what it has started
            threading.Thread(target=server.process.wait, daemon=True).start()
        return _serve(self._loads, environment, settings)

    def _forget(self) -> None:
        """Begin without a server. A forked process does, too: the one that it knows is its parent's."""
        self._lock = threading.Lock()
        self._server = None


def _sockets(environment: Mapping[str, str]) -> Path | None:
    """The folder that is told of. One that is gone may by now be another user's."""
    with contextlib.suppress(KeyError, OSError):
        folder = Path(environment[SHARED])
        if folder.stat().st_uid == os.getuid():
            return folder
    return None


@contextlib.contextmanager
def _folder_of_sockets(environment: Mapping[str, str]) -> Iterator[Path]:
    told = _sockets(environment)
    if told:
        yield told
        return
    with temporary_folder("servers") as folder:
        yield folder


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    read = (name for name in environment if name.startswith(_READ_WHEN_LOADED) and name not in _SET_BY_TORCH)
    return {name: environment[name] for name in read}


def _serve(arguments: Sequence[str], environment: dict[str, str], settings: dict[str, str]) -> _Server:
    """Start a server. It is given what to start once it has loaded its modules; until then that waits in a socket."""
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
