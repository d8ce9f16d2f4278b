"""What a run has left in its folder for the next launch of the same name. Loads no torch."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.runs.trainer.metrics import DESCRIPTION

KEEP = 2
"""Checkpoints: the newest, and the one before, in case that one is damaged."""
_COMPLETE = re.compile(r"checkpoint-(\d{8})\.pt")


def checkpoint(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / f"checkpoint-{step:08}.pt"


def steps(folder: Path) -> list[int]:
    """The steps of the complete checkpoints, from the oldest to the newest."""
    found = (_COMPLETE.fullmatch(path.name) for path in folder.glob("checkpoint-*.pt"))
    return sorted(int(match[1]) for match in found if match)


@dataclass(frozen=True)
class Earlier:
    """A run that can be continued: its newest ``step``, its ``options``, and how many ranks it had.

    ``options`` are None where its description cannot be read; ``world`` is 0 then.
    """

    step: int
    options: dict[str, Any] | None
    world: int


def earlier(folder: Path) -> Earlier | None:
    """The run in ``folder``; None where there is no complete checkpoint, and so nothing to continue."""
    done = steps(folder)
    if not done:
        return None
    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return Earlier(done[-1], dict(about["options"]), int(about["world"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Earlier(done[-1], None, 0)
