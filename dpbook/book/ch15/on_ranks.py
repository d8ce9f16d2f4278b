"""Run many scripts in one start of the ranks, one after another, each watched as `dpbook audit` watches one."""

import contextlib
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpbook.book.ch15.collection import SCRIPT
from dpbook.ranks import start
from dpbook.runs.audit import RunJournals, read_journals

SAID = "said-{}.txt"


@dataclass(frozen=True)
class Job:
    """A script, by its text, the arguments that it is given, and what the audit wants to see of it."""

    text: str
    arguments: tuple[str, ...] = ()
    wanted: dict[str, Any] = field(default_factory=dict)


@contextmanager
def watched(jobs: Sequence[Job], world: int) -> Iterator[list[RunJournals]]:
    """What the ranks of each script left, in the jobs' order; deleted at the end.

    A script must end on all ranks, or raise on all: one that hangs ends everything after ten minutes
    (`RankFailed`).
    """
    with tempfile.TemporaryDirectory(prefix="dpbook-museum-") as name:
        folders = [Path(name, str(number)) for number in range(len(jobs))]
        for folder, job in zip(folders, jobs, strict=True):
            folder.mkdir()
            (folder / SCRIPT).write_text(job.text, encoding="utf-8")
        todo = [(str(folder), list(job.arguments), job.wanted) for folder, job in zip(folders, jobs, strict=True)]
        raised = start(_run_all, [(rank, todo) for rank in range(world)], timeout=600, echo=False)
        yield [
            read_journals(folder, world, _first([each[number] for each in raised]))
            for number, folder in enumerate(folders)
        ]


def said(left: RunJournals, rank: int = 0) -> str:
    """What a rank printed."""
    assert left.folder is not None
    return (left.folder / SAID.format(rank)).read_text(encoding="utf-8")


def _first(raised: Sequence[str]) -> str:
    return next((f"rank {rank} failed: {text}" for rank, text in enumerate(raised) if text), "")


def _run_all(rank: int, jobs: Sequence[tuple[str, list[str], dict[str, Any]]]) -> list[str]:
    """On each rank: the error of each script, or ""."""
    import torch.distributed as dist

    from dpbook.runs.watching import watched as watching

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    raised = []
    with _one_group(dist):
        for folder, arguments, wanted in jobs:
            os.chdir(folder)
            sys.argv = [SCRIPT, *arguments]
            with (
                watching(Path(folder), wanted),
                open(SAID.format(rank), "w", encoding="utf-8") as out,
            ):
                raised.append(_run(out))
            dist.barrier()
    return raised


def _run(out: Any) -> str:
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return ""


@contextmanager
def _one_group(dist: Any) -> Iterator[None]:
    """All scripts use the group that there is."""
    before: Callable[..., None] = dist.init_process_group
    dist.init_process_group = lambda *args, **kwargs: None
    try:
        yield
    finally:
        dist.init_process_group = before
