"""Runs of exhibits: many scripts in one start of the ranks, recorded as `dpbook audit` does, and their findings."""

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dpbook.book.ch15.collection import SCRIPT, Exhibit
from dpbook.core import PACKAGE
from dpbook.ranks import start
from dpbook.runs.audit import CheckResult, Finding, RunJournals, judge_run, passed, read_journals, resume_findings

OUTPUT_FILE = "output-{}.txt"
"""File of a rank's standard output, in the folder of its script."""
UPDATES_AROUND_RESTART = 2
"""Updates before and after the restart of a run that is resumed."""
OWN_PROCESSES = ("launch", "preflight")
"""Tools that run a script in processes of its own."""
TIMEOUT_SECONDS = 600.0
LAUNCH_PREFIX = "dpbook launch: "
MESSAGES = LAUNCH_PREFIX, "problem: "
"""Beginnings of the messages of a launch, and of those of a preflight."""
Lines = tuple[Finding, ...]


@dataclass(frozen=True)
class ScriptJob:
    """Text of a script, its command-line arguments, and the options of its journal, as for `watching.recording`."""

    text: str
    arguments: tuple[str, ...] = ()
    wanted: dict[str, Any] = field(default_factory=dict)


@contextmanager
def watched(jobs: Sequence[ScriptJob], world: int) -> Iterator[list[RunJournals]]:
    """Run scripts one after another on ``world`` ranks, and yield the journals of each; they are deleted at the end.

    A script must end on all ranks, or raise on all: one that hangs stops everything after ten minutes (`RankFailed`).
    """
    with tempfile.TemporaryDirectory(prefix="dpbook-museum-") as name:
        folders = [Path(name, str(number)) for number in range(len(jobs))]
        for folder, job in zip(folders, jobs, strict=True):
            folder.mkdir()
            (folder / SCRIPT).write_text(job.text, encoding="utf-8")
        runs = list(zip(folders, jobs, strict=True))
        by_rank = start(_run_all, [(rank, runs) for rank in range(world)], timeout=TIMEOUT_SECONDS, echo=False)
        first_errors = [next(filter(None, errors), "") for errors in zip(*by_rank, strict=True)]
        yield [read_journals(folder, world, error) for folder, error in zip(folders, first_errors, strict=True)]


def printed(run: RunJournals) -> str:
    """Return what rank 0 printed."""
    assert run.folder is not None
    return (run.folder / OUTPUT_FILE.format(0)).read_text(encoding="utf-8")


def _run_all(rank: int, runs: Sequence[tuple[Path, ScriptJob]]) -> list[str]:
    """Run all scripts on this rank, and return the error of each, or ""."""
    import torch.distributed as dist

    from dpbook.runs.watching import recording

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    errors = []
    with patch.object(dist, "init_process_group", lambda *args, **kwargs: None):  # the scripts use the existing group
        for folder, job in runs:
            os.chdir(folder)
            sys.argv = [SCRIPT, *job.arguments]
            with (
                recording(folder, audit=True, **job.wanted),
                open(OUTPUT_FILE.format(rank), "w", encoding="utf-8") as output,
                redirect_stdout(output),
            ):
                error = _run()
            errors.append(error and f"rank {rank} failed: {error}")
            dist.barrier()
    return errors


def _run() -> str:
    try:
        runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    return ""


def verdicts(exhibits: Sequence[Exhibit], *, cured: bool = False) -> dict[str, Lines]:
    """Run exhibits and return the findings about each, by its name; those of the tool that names its cause."""
    findings: dict[str, Lines] = {}
    for world in sorted({one.world for one in exhibits if one.tool not in OWN_PROCESSES}):
        together = [one for one in exhibits if one.world == world and one.tool not in OWN_PROCESSES]
        together.sort(key=lambda one: "end" in one.follows)  # scripts that raise come last: they may break the ranks
        with watched([job for one in together for job in _jobs(one, cured)], world) as runs:
            remaining = iter(runs)
            findings |= {one.name: tuple(_findings(one, remaining)) for one in together}
    findings |= {one.name: (finding_alone(one, cured=cured),) for one in exhibits if one.tool in OWN_PROCESSES}
    return {one.name: findings[one.name] for one in exhibits}


def _jobs(exhibit: Exhibit, cured: bool) -> Iterator[ScriptJob]:
    """Yield the runs that a verdict on an exhibit needs."""
    text, half = exhibit.cured if cured else exhibit.script, UPDATES_AROUND_RESTART
    if exhibit.tool != "resume":
        yield ScriptJob(text, (), {"updates": exhibit.updates, "replay": 1})
        return
    yield ScriptJob(text, (), {"updates": 2 * half, "keep": 2 * half, "state": True, "replay": 1})
    yield ScriptJob(text, ("--out", ".."), {"updates": half, "saving": True})
    yield ScriptJob(text, ("--out", "..", "--resume"), {"updates": half, "keep": half, "state": True})


def _findings(exhibit: Exhibit, runs: Iterator[RunJournals]) -> Iterator[Finding]:
    whole = next(runs)
    yield from judge_run(whole, 1)
    if exhibit.tool == "resume":
        next(runs)
        yield from resume_findings(whole, next(runs))


def finding_alone(exhibit: Exhibit, *, cured: bool = False) -> Finding:
    """Run an exhibit under `dpbook launch`, or as a preflight, and return its last message, or a pass without one."""
    with tempfile.TemporaryDirectory(prefix="dpbook-museum-") as folder:
        Path(folder, SCRIPT).write_text(exhibit.cured if cured else exhibit.script, encoding="utf-8")
        command = ["-m", "dpbook", "launch", "--nproc", str(exhibit.world), "--"] if exhibit.tool == "launch" else []
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        child = subprocess.run(
            [sys.executable, *command, SCRIPT], cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
    output = child.stderr if exhibit.tool == "launch" else child.stdout
    lines = [text.removeprefix(LAUNCH_PREFIX) for text in output.splitlines() if text.startswith(MESSAGES)]
    messages = [text for text in lines if not text.startswith("warning: ")]
    if child.returncode and not messages:
        messages = [f"exit status {child.returncode}"]
    result = CheckResult("FAIL", messages[-1]) if messages else passed("nothing to say")
    return Finding(exhibit.tool, "the run finishes without an error", result)


def bad(lines: Iterable[Finding]) -> list[Finding]:
    """Return the findings that fail or warn, in their order."""
    return [line for line in lines if line.result.status in ("FAIL", "WARN")]


def print_findings(lines: Lines) -> None:
    """Print the first three findings that fail or warn, with their places; or that there are none."""
    for line in bad(lines)[:3]:
        result = line.result
        cause = f"follows from {line.because}: " if line.because else ""
        message = result.message.splitlines()[0].partition("; relative error")[0]  # its last digits are the machine's
        rank = "" if result.rank is None else f"rank {result.rank}"
        place = f"{result.place[0]}:{result.place[1]}  {result.place[2]}" if result.place else ""
        where = ", ".join(filter(None, [rank, f"update {result.update}" if result.update else "", place]))
        print(f"{result.status}  {cause}{line.claim}", message, *filter(None, [where]), sep="\n      ")
    if not bad(lines):
        print(f"no check fails or warns: {sum(line.result.status == 'PASS' for line in lines)} claims pass")
