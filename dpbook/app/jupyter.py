"""Start JupyterLab for the book: on this machine only, with its token, and without a request to any other host."""

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from dpbook.app import workbook
from dpbook.core import DATA, DpbookError, InvalidArgument, check_int, checkout

LAST_PORT = 65535
FIRST = "chapters/00_start_here.ipynb"


def server_command(
    directory: Path, *, ip: str = "127.0.0.1", port: int = 8888, browser: bool = True, allow_root: bool = False
) -> list[str]:
    """The command line that serves the notebooks below ``directory`` and opens the first chapter."""
    first = f"/lab/tree/{FIRST}" if (directory / FIRST).is_file() else "/lab"
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={directory}",
        f"--ServerApp.ip={ip}",
        f"--ServerApp.port={port}",
        # JupyterLab tries ports up to twice this number away, also past the last one that there is.
        f"--ServerApp.port_retries={max(0, min(50, (LAST_PORT - port) // 2 - 1))}",
        f"--LabApp.default_url={first}",
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


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base``, with the checkout on the path, so that a kernel finds dpbook without installation.

    The book's defaults for JupyterLab come before the user's configuration path: no question about fetching news.
    """
    before = {"PYTHONPATH": checkout.root(), "JUPYTER_CONFIG_PATH": DATA / "jupyter"}
    paths = {name: os.pathsep.join([str(first), *filter(None, [base.get(name)])]) for name, first in before.items()}
    return {**base, **paths}


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


def open_lab(*, ip: str, port: int, browser: bool, allow_root: bool) -> None:
    """Bring ``workbook/`` up to date, then become JupyterLab: this call does not return.

    Raises `DpbookError` for root without ``allow_root``, where JupyterLab is not installed, and for an address on which
    nothing can listen here.
    """
    if os.geteuid() == 0 and not allow_root:
        raise DpbookError(
            "you are root: code in a notebook could change anything on this machine. "
            "Use an ordinary user, or say --allow-root where that is what you want, as in a container"
        )
    if importlib.util.find_spec("jupyterlab") is None:
        raise DpbookError("JupyterLab is not installed here: `make lab` installs it into .venv")
    check_address(ip, port)
    target = checkout.root() / "workbook"
    print(f"Your copy of the notebooks: {target}\n{workbook.refresh(checkout.root(), target)}")
    browser = browser and has_display(os.environ)
    if not browser:
        print("Open the address that JupyterLab prints below, with its token, in a browser. Ctrl-C ends it.")
    sys.stdout.flush()
    command = server_command(target, ip=ip, port=port, browser=browser, allow_root=allow_root)
    os.execve(command[0], command, environment(os.environ))
