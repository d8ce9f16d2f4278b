"""Run JupyterLab as a child: what it logs goes into a file, and the terminal says where it is, and what goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dpbook.ranks import PARENT, end_with_parent

POLL = 0.2
LAST_LINES = 15
"""Of the log, shown where the server ends with an error."""
LEVEL = re.compile(r"\[([DIWEC]) ")
"""How Jupyter begins a line of its log; what follows without it, as a traceback does, belongs to the line."""


def serve(command: Sequence[str], env: Mapping[str, str], log: Path, *, page: str, port: int, opens: bool) -> int:
    """Start the server, print its address, and return its exit status when it has ended.

    SIGINT, SIGTERM and SIGHUP are handed on to it, and where this process is killed Linux ends it too. Errors that it
    logs are shown, and if it ends with one, the end of its log.

    Args:
        log: the file to write; an older one is replaced.
        page: the path that the address leads to, such as "/lab".
        port: the one that was asked for.
        opens: it opens a browser by itself.
    """
    log.unlink(missing_ok=True)  # another server may be writing into it still
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True,
            preexec_fn=_Bound(os.getpid()),
        )  # fmt: skip
    growing = _Log(log)
    with _signals_handed_on(child) as came:
        status = _watch(child, growing, _address_file(env, child.pid), page, port, opens)
    if came or not status:
        _show_errors(growing)
    else:
        print("\n".join(_last_lines(log)), file=sys.stderr)
        print(f"JupyterLab has ended with exit status {status}; all that it logged is in {log}", file=sys.stderr)
    return 128 - status if status < 0 else status


class _Bound:
    """Called in the child before it becomes the server: it then ends with ``parent``, orderly."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self) -> None:
        os.environ[PARENT] = str(self.parent)
        end_with_parent(signal.SIGTERM)


@contextmanager
def _signals_handed_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """While inside, signals go to the child; yields those that came."""
    came: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        came.append(number)
        child.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

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
        if not told and (address := _address(file, page)):
            told = True
            print(_words(address, log.path, port, opens), flush=True)


def _show_errors(log: "_Log") -> None:
    print(log.new_errors(), end="", file=sys.stderr, flush=True)


def _address_file(env: Mapping[str, str], pid: int) -> Path:
    """Where a server of this process id writes its address as soon as it listens."""
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir()) / f"jpserver-{pid}.json"


def _address(file: Path, page: str) -> str | None:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        token = f"?token={said['token']}" if said["token"] else ""  # it has none where the user has set a password
        return f"{said['url'].rstrip('/')}{page}{token}"
    except (OSError, ValueError, KeyError):  # not there yet, or half-written
        return None


def _words(address: str, log: Path, port: int, opens: bool) -> str:
    got = urlsplit(address).port
    other = "" if got == port else f" Port {port} is taken; this is {got}."
    how = "It opens in your browser. If it does not, open" if opens else "Open in a browser"
    return f"\nJupyterLab is running.{other} {how}\n\n    {address}\n\nCtrl-C ends it. Its log is {log}"


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
