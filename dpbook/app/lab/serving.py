"""Run JupyterLab as a child process: its log goes to a file, and the terminal shows one address."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO
from urllib.parse import urlsplit

from dpbook.core import PARENT, DpbookError, end_with_parent, handling_signals

POLL_SECONDS = 0.2
ALL_ADDRESSES = ("", "0.0.0.0", "::")
"""Host names for all addresses of a machine. Jupyter's URL then has one that others may not know, as in a container."""
LAST_LINES = 15
"""Lines of the log that are shown if the server ends with an error."""


def serve(command: Sequence[str], env: Mapping[str, str], log: Path, *, page: str, port: int, opens: bool) -> int:
    """Start the server, print its address, and return its exit status when it has ended.

    SIGINT, SIGTERM and SIGHUP end it; on Linux it also ends if this process is killed. If it ends with an error, the
    end of its log is shown. Raises `DpbookError` if the log cannot be written.

    Args:
        command: command that starts the server.
        env: its environment.
        log: file for its log. An older one is replaced; a server that still writes it keeps the old file.
        page: path that the address leads to, such as "/lab".
        port: port that was asked for.
        opens: whether it opens a browser by itself.
    """
    parent, signals = os.getpid(), list[int]()

    def bind_to_parent() -> None:
        os.environ[PARENT] = str(parent)
        end_with_parent(signal.SIGTERM)

    try:
        log.unlink(missing_ok=True)
        output = log.open("wb")
    except OSError as error:
        raise DpbookError(f"{log}: JupyterLab's log cannot be written ({error.strerror})") from None
    with output:
        # In a session of its own, so that Ctrl-C reaches this process alone. Jupyter ends in order after SIGTERM;
        # SIGINT raises an error in whatever it is doing, and that error may be caught.
        child = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True, preexec_fn=bind_to_parent
        )
    description = _runtime_folder(env) / f"jpserver-{child.pid}.json"
    with suppress(OSError):  # of an earlier server with this process id, as in a container
        description.unlink()

    def end_server(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        child.terminate()

    with handling_signals(end_server):
        address = _wait_for_address(child, description)
        if address is not None:
            print_line(_announcement(address, page, log, port, opens), sys.stdout)
        status = child.wait()
    if status and not signals:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        print_line("\n".join([*lines, f"JupyterLab ended with exit status {status}; its log is {log}"]), sys.stderr)
    return 128 - status if status < 0 else status


def print_line(text: str, stream: TextIO) -> None:
    """Print ``text``. A pipe or terminal that is closed does not end the server."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        with open(os.devnull, "w") as null:  # Python would report the error again at its end
            os.dup2(null.fileno(), stream.fileno())


def _runtime_folder(env: Mapping[str, str]) -> Path:
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir())


def _wait_for_address(child: subprocess.Popen[bytes], description: Path) -> dict[str, Any] | None:
    """Return the server's description of itself once it listens, or None if it ended before that."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(POLL_SECONDS)
            return None
        with suppress(OSError, ValueError):  # not there yet, half written, or written before the server listens
            server: dict[str, Any] = json.loads(description.read_text(encoding="utf-8"))
            host = "localhost" if server["hostname"] in ALL_ADDRESSES else server["hostname"]
            socket.create_connection((host, server["port"]), timeout=1).close()
            return server


def _announcement(server: Mapping[str, Any], page: str, log: Path, port: int, opens: bool) -> str:
    token = f"?token={server['token']}" if server["token"] else ""  # there is none if the user has set a password
    address = f"{server['url'].rstrip('/')}{page}{token}"
    other = "" if server["port"] == port else f" Port {port} is taken; this is {server['port']}."
    hint = "It opens in your browser. If it does not, open" if opens else "Open in a browser"
    name = urlsplit(address).hostname
    others = f"Any address of this machine works instead of {name}; on the machine itself, 127.0.0.1.\n"
    more = others if server["hostname"] in ALL_ADDRESSES else ""
    return f"\nJupyterLab is running.{other} {hint}\n\n    {address}\n\n{more}Ctrl-C ends it. Its log is {log}"
