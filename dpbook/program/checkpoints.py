"""Checkpoints that are whole or not there: written beside the last good ones, and named only when complete."""

import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import DpbookError

KEEP = 2
_COMPLETE = re.compile(r"checkpoint-(\d{8})\.pt")


def save(folder: Path, step: int, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
    """Write a checkpoint of ``step``; every rank calls it.

    ``shared`` is the same on all ranks and written by rank 0; ``own`` differs and is written by each. Rank 0's file is
    renamed to its name last: where it is, all of it is. Older ones but the last are removed after that.
    """
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    if own is not None:
        _write(own, _part(folder, step, rank))
    dist.barrier()
    if rank == 0:
        _write({**shared, "step": step, "world": dist.get_world_size()}, folder / f"checkpoint-{step:08}.pt")
        for old in steps(folder)[:-KEEP]:
            for path in folder.glob(f"checkpoint-{old:08}.*"):
                path.unlink()


def steps(folder: Path) -> list[int]:
    """The steps of the complete checkpoints, from the oldest to the newest."""
    found = (_COMPLETE.fullmatch(path.name) for path in folder.glob("checkpoint-*.pt"))
    return sorted(int(match[1]) for match in found if match)


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """The newest complete checkpoint, as `save` was given it, with "step" and "world"; None if there is none.

    The second part is this rank's own: None where there is none, or where the world had another size. Raises
    `DpbookError` naming a file that cannot be read.
    """
    saved = steps(folder)
    if not saved:
        return None
    shared = _read(folder / f"checkpoint-{saved[-1]:08}.pt")
    part = _part(folder, saved[-1], dist.get_rank())
    same_world = shared["world"] == dist.get_world_size()
    return shared, _read(part) if same_world and part.exists() else None


def _part(folder: Path, step: int, rank: int) -> Path:
    return folder / f"checkpoint-{step:08}.rank{rank}"


def _write(content: dict[str, Any], path: Path) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        cause = error if isinstance(error, OSError) else error.__context__  # torch says "unexpected pos 704 vs 598"
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for a file that is damaged or no checkpoint
        kind = type(error).__name__
        said = f"{path} cannot be read as a checkpoint ({kind}); remove it to resume from the one before"
        raise DpbookError(said) from error
    return content
