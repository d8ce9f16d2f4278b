"""Files of the package and of users: atomic writes, locks, temporary folders, JSON with a version, pages."""

import fcntl
import functools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbook.core.errors import InvalidArgument

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = Path(__file__).parents[1]
"""Folder of the package; in a checkout, ``chapters`` is beside it."""
DATA = PACKAGE / "data"
"""Folder of the data that ships with the package: digits, text, recordings, settings."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically: after a crash the file is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def parse(text: str, format_: str, version: int) -> dict[str, Any]:
    """Return a JSON object with these values of "format" and "version". Raises `InvalidArgument` for any other text."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("text", str(error), "JSON as written by to_json") from None
    if not isinstance(data, dict) or data.get("format") != format_ or data.get("version") != version:
        actual = {key: data.get(key) for key in ("format", "version")} if isinstance(data, dict) else data
        raise InvalidArgument("text", actual, f"of format {format_!r}, version {version}")
    return data


def render_page(name: str, /, **values: Any) -> str:
    """Return the HTML of the template ``name`` among the package's data; ``values`` are escaped."""
    return _templates().get_template(f"{name}.jinja").render(**values)


def mathml(formula: str, *, block: bool = False) -> str:
    """Return a formula of TeX as MathML, for a line of text or for a ``block`` of its own."""
    from latex2mathml.converter import convert

    markup: str = convert(formula, display="block" if block else "inline")
    # A bar of |x| has no direction for the converter, which takes both for operators between two things.
    return re.sub(r"<mo([^>]*)>(&#x0007C;|\|)</mo>", '<mo stretchy="false" lspace="0" rspace="0">|</mo>', markup)


@functools.cache
def _templates() -> "Environment":
    from jinja2 import Environment, FileSystemLoader

    return Environment(loader=FileSystemLoader(DATA), autoescape=True, trim_blocks=True, lstrip_blocks=True)


PREFIX, LOCK_NAME = "dpbook-", "held"
REMOVAL_TIMEOUT = 2.0
"""Seconds of trying to remove a folder."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process without waiting; return False if another process has the lock.

    The lock ends with the process. Raises `OSError` on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a folder that is removed at the end. Folders of killed processes are removed at the beginning."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-"))
    lock = os.open(folder / f".{LOCK_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # without locks no process can tell which others have been killed
            try_lock(lock)
            os.rename(folder / f".{LOCK_NAME}", folder / LOCK_NAME)  # locked before it is visible to others
        yield folder
    finally:
        # Remove a folder, even if a process that has just been killed still writes into it.
        deadline = time.monotonic() + REMOVAL_TIMEOUT
        shutil.rmtree(folder, ignore_errors=True)
        while folder.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError):  # of another user, or removed meanwhile
            descriptor = os.open(lock, os.O_RDWR)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
