"""Files: data of the package, atomic writes, JSON with a format and a version, and pages from templates."""

import functools
import json
import os
import tempfile
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


@functools.cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("dpbook", "data"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
