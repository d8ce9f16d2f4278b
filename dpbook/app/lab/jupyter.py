"""Start JupyterLab for the book: on this machine only, with its token, and without a request to any other host."""

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from dpbook.app.lab import workbook
from dpbook.core import DATA, DpbookError, InvalidArgument, check_int, checkout, machine

LAST_PORT = 65535
LOG = ".jupyterlab.log"
"""In the workbook; JupyterLab shows no file that begins with a dot."""
FIRST = "chapters/00_start_here.ipynb"


def server_command(
    directory: Path, *, ip: str = "127.0.0.1", port: int = 8888, browser: bool = True, allow_root: bool = False
) -> list[str]:
    """The command line that serves the notebooks below ``directory`` and opens the first chapter."""
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
    """``base``, with the checkout on the path, so that a kernel finds dpbook without installation.

    A kernel keeps what it frees and computes with one thread, as ranks do; a variable that is set in ``base`` wins.
    The book's defaults for JupyterLab come before the user's configuration path: no question about fetching news. So
    does its extension, which draws players, figures with knobs and fields for predictions.
    """
    settings = DATA / "jupyter"
    before = {"PYTHONPATH": checkout.root(), "JUPYTER_CONFIG_PATH": settings, "JUPYTER_PATH": settings}
    paths = {name: os.pathsep.join([str(first), *filter(None, [base.get(name)])]) for name, first in before.items()}
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


def open_lab(*, ip: str, port: int, browser: bool, allow_root: bool) -> int:
    """Bring ``workbook/`` up to date, run JupyterLab on it until it ends, and return its exit status.

    Raises `DpbookError` for root without ``allow_root``, where JupyterLab is not installed, for an address on which
    nothing can listen here, and where the workbook cannot be written.
    """
    from dpbook.app.lab import serving  # here, so that the doctor needs no package that may be missing

    if os.geteuid() == 0 and not allow_root:
        raise DpbookError(
            "you are root: code in a notebook could change anything on this machine. "
            "Use an ordinary user, or say --allow-root where that is what you want, as in a container"
        )
    if importlib.util.find_spec("jupyterlab") is None:
        raise DpbookError("JupyterLab is not installed here: `make lab` installs it into .venv")
    check_address(ip, port)
    target = checkout.root() / "workbook"
    serving.print_line(f"Your copy of the notebooks: {target}", sys.stdout)
    try:
        done = workbook.refresh(checkout.root(), target)
    except OSError as error:
        raise DpbookError(f"your copy cannot be written: {error.filename}: {error.strerror}") from None
    serving.print_line(f"{done}\nStarting JupyterLab", sys.stdout)
    opens = browser and has_display(os.environ)
    command = server_command(target, ip=ip, port=port, browser=opens, allow_root=allow_root)
    return serving.serve(
        command, environment(os.environ), target / LOG, page=first_page(target), port=port, opens=opens
    )
