"""Start JupyterLab for the book: on this machine only, with its token, and without a request to any other host.

It runs as a child process. Its log goes to a file, and the terminal shows one address.
"""

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

from dpbook.app.lab import workbook
from dpbook.core import (
    DATA,
    PACKAGE,
    PARENT,
    DpbookError,
    InvalidArgument,
    check_int,
    checkout,
    end_with_parent,
    handling_signals,
    machine,
)

POLL_SECONDS = 0.2
ALL_ADDRESSES = ("", "0.0.0.0", "::")
"""Host names for all addresses of a machine. Jupyter's URL then has one that others may not know, as in a container."""
LAST_LINES = 15
"""Lines of the log that are shown if the server ends with an error."""


def serve(command: Sequence[str], env: Mapping[str, str], log: Path, *, page: str, port: int, opens: bool) -> int:
    """Start the server, print its address, and return its exit status when it has ended.

    SIGINT, SIGTERM and SIGHUP end it; on Linux it also ends if this process is killed. If it ends with an error, the
    end of its ``log`` is shown. An older log is replaced; a server that still writes it keeps the old file. ``page`` is
    the path that the address leads to, such as "/lab"; ``opens`` says whether the server opens a browser by itself.
    Raises `DpbookError` if the log cannot be written.
    """
    from jupyter_core.paths import jupyter_runtime_dir

    parent, signals = os.getpid(), list[int]()
    folder = Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir())

    def prepare_child() -> None:
        os.environ[PARENT] = str(parent)
        end_with_parent(signal.SIGTERM)
        with suppress(OSError):  # of an earlier server with this process id, as in a container
            _description(folder, os.getpid()).unlink()

    try:
        log.unlink(missing_ok=True)
        output = log.open("wb")
    except OSError as error:
        raise DpbookError(f"{log}: cannot write JupyterLab's log ({error.strerror})") from None
    with output:
        # In a session of its own, so that Ctrl-C reaches this process alone. Jupyter ends in order after SIGTERM;
        # SIGINT raises an error in whatever it is doing, and that error may be caught.
        child = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True, preexec_fn=prepare_child
        )

    def end_server(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        child.terminate()

    with handling_signals(end_server):
        address = _wait_for_address(child, _description(folder, child.pid))
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


def _description(folder: Path, pid: int) -> Path:
    """Return the file in which the server with this process id describes itself."""
    return folder / f"jpserver-{pid}.json"


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
    other = "" if server["port"] == port else f" Port {port} is in use; using {server['port']}."
    hint = "It opens in your browser. If it does not, open" if opens else "Open in a browser"
    name = urlsplit(address).hostname
    others = f"Any address of this machine works instead of {name}; on the machine itself, use 127.0.0.1.\n"
    more = others if server["hostname"] in ALL_ADDRESSES else ""
    return f"\nJupyterLab is running.{other} {hint}\n\n    {address}\n\n{more}Ctrl-C stops it. Its log is {log}"


LAST_PORT = 65535
LOG = ".jupyterlab.log"
"""In the workbook; JupyterLab shows no file that begins with a dot."""
FIRST = "chapters/00_start_here.ipynb"


def server_command(
    directory: Path, *, ip: str = "127.0.0.1", port: int = 8888, browser: bool = True, allow_root: bool = False
) -> list[str]:
    """Return the command line that serves the notebooks below ``directory`` and opens the first chapter."""
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={directory}",
        f"--ServerApp.ip={ip}",
        f"--ServerApp.port={port}",
        # JupyterLab tries ports up to twice this number away, also past the last one that there is.
        f"--ServerApp.port_retries={max(0, min(50, (LAST_PORT - port) // 2 - 1))}",
        f"--LabApp.default_url={first_page(directory)}",
        "--ServerApp.answer_yes=True",  # Ctrl-C ends it without a question
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if not browser:
        command.append("--no-browser")
    if allow_root:
        command.append("--allow-root")
    return command


def first_page(directory: Path) -> str:
    """Return the page on which a reader begins: the first chapter, or JupyterLab itself where there is none."""
    return f"/lab/tree/{FIRST}" if (directory / FIRST).is_file() else "/lab"


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return ``base`` with this package on the path, so that a kernel finds dpbook without installation.

    A kernel keeps what it frees and computes with one thread, as ranks do; a variable that is set in ``base`` wins.
    The book's defaults for JupyterLab come before the user's configuration path: no question about fetching news. So
    does its extension, which draws players, figures with knobs and fields for predictions.
    """
    settings = DATA / "jupyter"
    before = {"PYTHONPATH": PACKAGE.resolve().parent, "JUPYTER_CONFIG_PATH": settings, "JUPYTER_PATH": settings}
    paths = {}
    for name, first in before.items():  # once, so that the environment of an environment is the same one
        others = [entry for entry in base.get(name, "").split(os.pathsep) if entry not in ("", str(first))]
        paths[name] = os.pathsep.join([str(first), *others])
    return {**machine.MALLOC_SETTINGS, **machine.ONE_THREAD, **base, **paths}


def has_display(env: Mapping[str, str]) -> bool:
    """Whether a browser opened here could be seen by anyone."""
    return not sys.platform.startswith("linux") or bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


def check_address(ip: str, port: int) -> None:
    """Raise `InvalidArgument` unless ``port`` is one and ``ip`` names an address of this machine (``*``: all of them).

    Whether the port is free is left to JupyterLab, which tries the ones after it.
    """
    check_int("port", port, 1, LAST_PORT)
    if ip == "*":
        return
    try:
        family, kind, protocol, _, (host, _, *rest) = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((host, 0, *rest))
    except (OSError, UnicodeError):  # it has no such form, is not known, or is another machine's
        raise InvalidArgument("ip", ip, "an address of this machine, such as 127.0.0.1, or * for all of them") from None


def copy_notebooks() -> Path:
    """Bring the reader's ``workbook`` up to date, print what was done, and return its path.

    Raises `DpbookError` where it cannot be written.
    """
    target = checkout.workbook()
    print_line(f"Your copy of the notebooks: {target}", sys.stdout)
    try:
        done = workbook.refresh(checkout.book(), target)
    except OSError as error:
        raise DpbookError(f"cannot write your copy: {error.filename}: {error.strerror}") from None
    print_line(str(done), sys.stdout)
    return target


def open_lab(*, ip: str, port: int, browser: bool, allow_root: bool) -> int:
    """Bring ``workbook/`` up to date, run JupyterLab on it until it ends, and return its exit status.

    Raises `DpbookError` for root without ``allow_root``, for an address on which nothing can listen here, and where the
    workbook cannot be written.
    """
    if os.geteuid() == 0 and not allow_root:
        raise DpbookError(
            "you are root: code in a notebook could change anything on this machine. "
            "Use an ordinary user, or pass --allow-root, for example in a container"
        )
    check_address(ip, port)
    target = copy_notebooks()
    print_line("Starting JupyterLab", sys.stdout)
    opens = browser and has_display(os.environ)
    command = server_command(target, ip=ip, port=port, browser=opens, allow_root=allow_root)
    return serve(command, environment(os.environ), target / LOG, page=first_page(target), port=port, opens=opens)
