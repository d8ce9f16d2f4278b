"""Checkpoints that are whole or not there: written beside the last good ones, and named only when complete."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import DpbookError
from dpbook.runs.trainer.run_folder import KEEP, checkpoint, steps


def save(folder: Path, step: int, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
    """Write a checkpoint of ``step``; every rank calls it, and it returns when all of it is on the disk.

    ``shared`` is the same on all ranks and written by rank 0; ``own`` differs and is written by each. Rank 0's file is
    renamed to its name last: where it is, all of it is. Older ones but the last are removed after that.
    """
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    if own is not None:
        _write({**own, "step": step}, _part(folder, step, rank))
    dist.barrier()
    if rank == 0:
        content = {**shared, "step": step, "world": dist.get_world_size(), "parts": own is not None}
        _write(content, checkpoint(folder, step))
        for partial in folder.glob(".checkpoint-*.partial"):  # of a process that was killed
            partial.unlink()
        for old in steps(folder)[:-KEEP]:
            for path in folder.glob(f"checkpoint-{old:08}.*"):
                path.unlink()
    dist.barrier()


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """The newest checkpoint that every rank can read, as `save` was given it, with "step" and "world", or None.

    Every rank calls it. The second part is this rank's own: None where there is none, or where the world had another
    size. A damaged one is told on rank 0's stderr, and put aside where there is a good one before it. Raises
    `DpbookError` naming all of them if none can be read; None is for a folder without any.
    """
    rank_0s = [steps(folder)]
    dist.broadcast_object_list(rank_0s)  # all try the same, also where a disk is slow to show what there is
    damaged: dict[int, str] = {}
    for step in reversed(rank_0s[0]):
        found, trouble = _try(folder, step)
        if trouble := _first_of_all(trouble):
            damaged[step] = trouble
            continue
        if dist.get_rank() == 0:
            for number, text in damaged.items():
                print(f"{text}; it is put aside, and the one before is taken", file=sys.stderr, flush=True)
                path = checkpoint(folder, number)
                path.replace(path.with_name(f"{path.name}.damaged"))
        return found
    if damaged:
        raise DpbookError("; ".join([*damaged.values(), "no checkpoint is left to go on from"]))
    return None


def _try(folder: Path, step: int) -> tuple[tuple[dict[str, Any], dict[str, Any] | None] | None, str]:
    """The checkpoint of a step on this rank, or what is wrong with it."""
    try:
        shared = _read(checkpoint(folder, step), step)
        part = _part(folder, step, dist.get_rank())
        wanted = shared.get("world") == dist.get_world_size() and shared.get("parts", part.exists())
        return (shared, _read(part, step) if wanted else None), ""
    except DpbookError as error:
        return None, str(error)


def _first_of_all(text: str) -> str:
    """What the first rank said that said something, on all ranks; "" if none did."""
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, text)
    return next(filter(None, said), "")


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


def _read(path: Path, step: int) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:  # torch itself does not look whether the bytes are still those
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} has changed")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or content.get("step") != step:
            raise ValueError(f"it holds nothing of step {step}")
    except FileNotFoundError:
        raise DpbookError(f"{path} is missing") from None
    except Exception as error:  # whatever torch raises for a file that is damaged or no checkpoint
        raise DpbookError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error})") from error
    return content
