"""Files: data of the package, atomic writes, and JSON with a format and a version."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from dpbook.core.errors import InvalidArgument

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
