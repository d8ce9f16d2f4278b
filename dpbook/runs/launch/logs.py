"""What the ranks but rank 0 printed: where it goes, and what of it stays."""

import shutil
import time
from itertools import count
from pathlib import Path

LOGS = Path("runs", "logs")
"""Where the output of a failed launch is kept if nothing was said."""


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder of its own for a launch: name and time, and a number where two begin within a second."""
    stamp = "-".join(filter(None, [name, time.strftime("%Y%m%d-%H%M%S")]))
    for number in count(1):
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError("count does not end")


def tidy(folder: Path) -> bool:
    """Leave attempt_0/1/stderr.log and its like, of those that are not empty; whether any is left.

    torchrun puts a folder between, with a name drawn by chance. A folder in which nothing is left is removed.
    """
    written = [path for path in folder.glob("*/attempt_*/*/std*.log") if path.stat().st_size]
    for path in written:
        to = folder.joinpath(*path.parts[-3:])
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    for between in folder.glob("*"):
        if not between.name.startswith("attempt_"):
            shutil.rmtree(between)
    if not written and folder.is_dir():
        folder.rmdir()
    return bool(written)


def keep(folder: Path, name: str) -> Path | None:
    """Copy a tidy folder to `LOGS`; where it went, or None where there was no room."""
    try:
        return Path(shutil.copytree(folder, new_folder(LOGS, name), dirs_exist_ok=True))
    except OSError:  # a full disk may be why the launch failed
        return None
