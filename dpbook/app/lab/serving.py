"""Run JupyterLab as a child: what it logs goes into a file, and the terminal says where it is, and what goes wrong."""

import errno
import fcntl
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO
from urllib.parse import urlsplit

from dpbook.core import PARENT, DpbookError, end_with_parent

POLL = 0.2
EVERYWHERE = ("", "0.0.0.0", "::")
"""What it calls all addresses of a machine. It then names one of them, which others may not know, as in a container."""
LAST_LINES = 15
"""Of the log, shown where the server ends with an error."""
LEVEL = re.compile(r"\[([DIWEC]) ")
"""How Jupyter begins a line of its log; what follows without it, as a traceback does, belongs to the line."""


def serve(command: Sequence[str], env: Mapping[str, str], log: Path, *, page: str, port: int, opens: bool) -> int:
    """Start the server, print its address, and return its exit status when it has ended.

    SIGINT, SIGTERM and SIGHUP end it, and where this process is killed Linux ends it too. Errors that it
    logs are shown, and if it ends with one, the end of its log. Raises `DpbookError` where no log can be written.

    Args:
        log: the file to write; an older one is replaced, but where another server writes it the name gets a number.
        page: the path that the address leads to, such as "/lab".
        port: the one that was asked for.
        opens: it opens a browser by itself.
    """
    log, output = _opened(log)
    with output:
        child = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True,
            preexec_fn=_Bound(os.getpid(), _runtime_folder(env)),
        )  # fmt: skip
    growing = _Log(log)
    with _signals_handed_on(child) as came:
        status = _watch(child, growing, _address_file(_runtime_folder(env), child.pid), page, port, opens)
    if came or not status:
        _show_errors(growing)
    else:
        tell("\n".join(_last_lines(log)) + "\n", sys.stderr)
        tell(f"JupyterLab has ended with exit status {status}; all that it logged is in {log}\n", sys.stderr)
    return 128 - status if status < 0 else status


def _opened(log: Path) -> tuple[Path, BinaryIO]:
    """An empty log, locked for as long as the server or a kernel of it has it open, and the name that it got."""
    for number in itertools.count(1):
        path = log if number == 1 else log.with_name(f"{log.stem}-{number}{log.suffix}")
        try:
            output = path.open("ab")
        except OSError as error:
            raise DpbookError(f"{path}: JupyterLab's log cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):  # another server writes it; some disks have no locks
                output.close()
                continue
        output.truncate(0)
        return path, output
    raise AssertionError("unreachable: the numbers do not end")


def tell(text: str, stream: TextIO | None) -> None:
    """Print, if anyone is there to read it: a pipe or a terminal that is closed does not end the server."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:  # Python would complain once more at its end
            os.dup2(nowhere.fileno(), stream.fileno())


class _Bound:
    """Called in the child before it becomes the server: it then ends with ``parent``, orderly.

    The address of an earlier server that was killed and had this process id, as in a container, is removed.
    """

    def __init__(self, parent: int, folder: Path) -> None:
        self.parent, self.folder = parent, folder

    def __call__(self) -> None:
        with suppress(OSError):
            _address_file(self.folder, os.getpid()).unlink()
        os.environ[PARENT] = str(self.parent)
        end_with_parent(signal.SIGTERM)


@contextmanager
def _signals_handed_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """While inside, a signal ends the child; yields those that came.

    As SIGTERM, which Jupyter awaits: SIGINT raises an error in whatever it is doing, and that may be swallowed.
    """
    came: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        came.append(number)
        child.terminate()

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(child: subprocess.Popen[bytes], log: "_Log", file: Path, page: str, port: int, opens: bool) -> int:
    told = False
    while True:
        try:
            return child.wait(POLL)
        except subprocess.TimeoutExpired:
            _show_errors(log)
        if not told and (said := _said(file)) and _listens(said):
            told = True
            tell(_words(said, page, log.path, port, opens), sys.stdout)


def _show_errors(log: "_Log") -> None:
    if new := log.new_errors():
        tell(new, sys.stderr)


def _runtime_folder(env: Mapping[str, str]) -> Path:
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir())


def _address_file(folder: Path, pid: int) -> Path:
    """Return the file in which a server of this process id writes its address, just before or after it listens."""
    return folder / f"jpserver-{pid}.json"


def _said(file: Path) -> dict[str, Any] | None:
    """Return the server's own description, or None as long as it is not there or half-written."""
    try:
        said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return said if {"url", "token", "port", "hostname"} <= said.keys() else None
    except (OSError, ValueError):
        return None


def _listens(said: Mapping[str, Any]) -> bool:
    host = "localhost" if said["hostname"] in EVERYWHERE else said["hostname"]
    with suppress(OSError), socket.create_connection((host, said["port"]), timeout=1):
        return True
    return False


def _words(said: Mapping[str, Any], page: str, log: Path, port: int, opens: bool) -> str:
    token = f"?token={said['token']}" if said["token"] else ""  # it has none where the user has set a password
    address = f"{said['url'].rstrip('/')}{page}{token}"
    other = "" if said["port"] == port else f" Port {port} is taken; this is {said['port']}."
    how = "It opens in your browser. If it does not, open" if opens else "Open in a browser"
    name = urlsplit(address).hostname
    names = f"Any address of this machine will do in place of {name}, on itself 127.0.0.1.\n"
    all_of_them = names if said["hostname"] in EVERYWHERE else ""
    return f"\nJupyterLab is running.{other} {how}\n\n    {address}\n\n{all_of_them}Ctrl-C ends it. Its log is {log}\n"


class _Log:
    """A log that grows: what is new in it and is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._is_error = False

    def new_errors(self) -> str:
        """The whole lines that came since the last call, if they are errors or follow one."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return "".join(filter(self._belongs, whole.decode(errors="replace").splitlines(keepends=True)))

    def _belongs(self, line: str) -> bool:
        if level := LEVEL.match(line):
            self._is_error = level[1] == "E"
        return self._is_error


def _last_lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
