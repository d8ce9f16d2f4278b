"""Atomic checkpoints: a file is written under a temporary name, and renamed when it is complete."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import DpbookError
from dpbook.runs.trainer.run_folder import KEEP, checkpoint, steps


def save(folder: Path, step: int, shared: dict[str, Any], shard: dict[str, Any] | None) -> None:
    """Write a checkpoint of ``step``. Every rank calls it; it returns when the whole checkpoint is on the disk.

    ``shared`` is the same on all ranks and is written by rank 0; ``shard`` differs and is written by each rank.
    Rank 0's file is renamed last: if it exists, the checkpoint is complete. Then all but the newest `KEEP` are removed.
    """
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    if shard is not None:
        _write({**shard, "step": step}, _part(folder, step, rank))
    dist.barrier()
    if rank == 0:
        content = {**shared, "step": step, "world": dist.get_world_size(), "parts": shard is not None}
        _write(content, checkpoint(folder, step))
        for partial in folder.glob(".checkpoint-*.partial"):  # left by a process that was killed
            partial.unlink()
        for old in steps(folder)[:-KEEP]:
            for path in folder.glob(f"checkpoint-{old:08}.*"):
                path.unlink()
    dist.barrier()


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Return the newest checkpoint that every rank can read, or None if the folder has none. Every rank calls it.

    The first part is ``shared`` of `save` with "step" and "world". The second is this rank's ``shard``; it is None if
    there is none, or if the world size has changed. Rank 0 reports a damaged checkpoint on stderr, and renames it if an
    older one can be read. Raises `DpbookError` that names all of them if none can be read.
    """
    rank_0_steps = [steps(folder)]
    dist.broadcast_object_list(rank_0_steps)  # all try the same steps, even if a network disk shows files late
    damaged: dict[int, str] = {}
    for step in reversed(rank_0_steps[0]):
        content, problem = _try(folder, step)
        problems: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
        if any(problems):
            damaged[step] = next(filter(None, problems))
            continue
        if dist.get_rank() == 0:
            for number, text in damaged.items():
                print(f"{text}; renamed it to *.damaged; using the previous checkpoint", file=sys.stderr, flush=True)
                path = checkpoint(folder, number)
                path.replace(path.with_name(f"{path.name}.damaged"))
        return content
    if damaged:
        raise DpbookError("; ".join([*damaged.values(), "no readable checkpoint is left to resume from"]))
    return None


def _try(folder: Path, step: int) -> tuple[tuple[dict[str, Any], dict[str, Any] | None] | None, str]:
    """Return the checkpoint of a step on this rank, or the error in words."""
    try:
        shared = _read(checkpoint(folder, step), step)
        part = _part(folder, step, dist.get_rank())
        wanted = shared.get("world") == dist.get_world_size() and shared.get("parts", part.exists())
        return (shared, _read(part, step) if wanted else None), ""
    except DpbookError as error:
        return None, str(error)


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
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):  # torch's own message would be "unexpected pos 704 vs 598"
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def _read(path: Path, step: int) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not verify the checksums
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} has changed")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or content.get("step") != step:
            raise ValueError(f"it has no data of step {step}")
    except FileNotFoundError:
        raise DpbookError(f"{path} is missing") from None
    except Exception as error:  # torch raises many types for a damaged file
        raise DpbookError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error})") from error
    return content
