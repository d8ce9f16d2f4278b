"""A checkpoint that did not fit: torch says "unexpected pos 704 vs 598", and not that the disk is full."""

import errno
import os
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

_WRITER = "inline_container.cc"
"""What torch's writer of archives calls itself."""
_SERIALIZATION = os.path.join("torch", "serialization.py")
FULL = 2**20
"""Bytes: a disk with less room than this is full."""


def in_plain_words(error: BaseException) -> BaseException:
    """The `OSError` that `torch.save` hides where the disk is full, with the file's name; else ``error`` itself."""
    if _WRITER not in str(error):
        return error
    path = next(_saved_to(error), None)
    told = any(isinstance(before, OSError) and before.errno == errno.ENOSPC for before in _handled(error))
    if not told and (path is None or not _is_full(path)):
        return error
    plain = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([str(path)] if path else []))
    plain.__cause__ = error
    return plain.with_traceback(error.__traceback__)


def _saved_to(error: BaseException) -> Iterator[Path]:
    """The file that `torch.save` was given, by name or open."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "save" and frame.f_code.co_filename.endswith(_SERIALIZATION):
            file = frame.f_locals.get("f")
            name = getattr(file, "name", file)
            if isinstance(name, (str, os.PathLike)):
                yield Path(name)


def _handled(error: BaseException) -> Iterator[BaseException]:
    """The errors during whose handling ``error`` came: the one before it, the one before that, and so on."""
    before = error.__context__
    while before is not None:
        yield before
        before = before.__context__


def _is_full(path: Path) -> bool:
    folder = path.resolve().parent
    return folder.is_dir() and shutil.disk_usage(folder).free < FULL
