"""Start a script as `dpbook launch` does, record it, and judge the journals. Loads no torch."""

import shlex
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbook.core import InvalidArgument, check_float, check_int, plural
from dpbook.runs.audit.checks import CHECKS, check_findings
from dpbook.runs.audit.findings import Finding, Verdict, link_causes, passed, sort_findings
from dpbook.runs.audit.journals import RunJournals, read_journals
from dpbook.runs.audit.replay import AFTER, NAME, replay_findings
from dpbook.runs.audit.resume import resume_findings
from dpbook.runs.launch import Launch
from dpbook.runs.watching.journal import number_of_journals, read_journal
from dpbook.runs.watching.watched_launch import Reporter, launch_watched

_CAUSES = {check.name: check.after for check in CHECKS} | {NAME: AFTER}
"""For each check, the checks whose failure may explain its own."""


@dataclass(frozen=True)
class Audit:
    """Specification of an audit on one machine.

    Attributes:
        program: script and its arguments, or "-m", a module and its arguments.
        nproc: number of ranks, at least 2.
        updates: updates of the optimizer after which the script is stopped (0: it runs to its end).
        every: record one update in so many.
        replay: update whose gradient is compared with the big batch's (0: none).
        save: options with which the script writes a checkpoint; ``{folder}`` in them is replaced by a folder for it.
        resume: options with which the script resumes from that checkpoint, ``{folder}`` included. If they are given,
            the script is also stopped and started again.
        whole: options of the run that is not stopped, in place of ``save``, for a script that saves only where it ends.
        start_timeout: as for `dpbook.runs.launch.Launch`, in seconds.
        spawns: as for `Launch`: the script starts its ranks itself.
        timeout: seconds after which a collective that waits ends the run, unless the script sets a timeout itself.

    Raises:
        InvalidArgument: if a number is too small, or the program cannot be launched.
    """

    program: tuple[str, ...]
    nproc: int
    updates: int = 5
    every: int = 1
    replay: int = 1
    save: str = ""
    resume: str | None = None
    whole: str | None = None
    start_timeout: float = 300.0
    timeout: float = 300.0
    spawns: bool = False

    def __post_init__(self) -> None:
        check_int("nproc", self.nproc, 2)  # a single rank has no other rank to differ from
        check_int("updates", self.updates, 0)
        check_int("every", self.every, 1)
        check_int("replay", self.replay, 0)
        check_float("timeout", self.timeout, above=0)
        if self.resume is not None and self.updates == 0:
            raise InvalidArgument("updates", self.updates, "at least 1 if resume is tested: it restarts after them")
        self.launch()

    def launch(self, **options: Any) -> Launch:
        """Return the launch of the script, with further options of `Launch`."""
        return Launch(self.program, self.nproc, start_timeout=self.start_timeout, spawns=self.spawns, **options)


def audit(spec: Audit, report: Reporter = lambda text: None) -> Verdict:
    """Run an audit and return its verdict.

    ``report`` receives a sentence whenever there is progress to report. The journals are deleted at the end.
    """
    with tempfile.TemporaryDirectory(prefix="dpbook-audit-") as name:
        folder = Path(name)
        if spec.resume is None:
            run, stopped = _run(spec, folder / "run", report)
            findings = judge_run(run, spec.replay)
        else:
            run, stopped, findings = _resumed(spec, spec.resume, folder, report)
        return _verdict(run, findings, stopped)


def judge_recording(folder: Path, replay: int = 1) -> Verdict:
    """Judge the journals in ``folder``, whoever started the ranks. Raises `InvalidArgument` without journals."""
    world = number_of_journals(folder)
    if world < 2:
        raise InvalidArgument("folder", folder, f"one with the journals of 2 ranks or more; it has {world}")
    run = read_journals(folder, world)
    return _verdict(run, judge_run(run, replay))


def _verdict(run: RunJournals, findings: Iterable[Finding], stopped: int = 0) -> Verdict:
    """Return the verdict; the cost is the median over the updates after the first, of the rank where it is largest."""
    shares = [
        [event["watching"] / max(event["seconds"] - event["watching"], 1e-9) for event in events if event["update"] > 1]
        for events in run.of("cost")
    ]
    cost = max((statistics.median(of_rank) for of_rank in shares if of_rank), default=None)
    updates = max((update.number for update in run.updates), default=0)
    return Verdict(tuple(findings), updates, cost, stopped)


def judge_run(run: RunJournals, replay: int) -> list[Finding]:
    """Return the findings of a recorded run; ``replay`` is the update to compare with the big batch's (0: none)."""
    replays = replay_findings(run, replay) if replay else []
    findings = check_findings(run)
    if replays and all(finding.result.status == "PASS" for finding in replays if finding.name == NAME):
        for nth, finding in enumerate(findings):
            accused = finding.result.status in ("FAIL", "WARN")
            if finding.name == "mean" and accused and finding.result.update == replay:
                reason = f"{finding.result.message}, and the script's averaging makes up for it"
                findings[nth] = replace(finding, result=passed(reason))
    return link_causes([*findings, *replays], _CAUSES)


def _resumed(spec: Audit, resume: str, folder: Path, report: Reporter) -> tuple[RunJournals, int, list[Finding]]:
    """Make three runs: one without a break, one that is stopped half-way, and one that resumes it."""
    half = spec.updates
    whole_checkpoint, half_checkpoint = folder / "whole", folder / "halves"
    report(f"first run: {plural(2 * half, 'update')} without a break")
    unbroken = _with(spec, spec.save if spec.whole is None else spec.whole, whole_checkpoint)
    whole, stopped = _run(unbroken, folder / "run", report, updates=2 * half, keep=2 * half, state=True)
    findings = judge_run(whole, spec.replay)
    if stopped or whole.ended:
        return whole, stopped, findings
    report(f"second run: ended after {plural(half, 'update')}, when it has saved")
    first, stopped = _run(
        _with(spec, spec.save, half_checkpoint), folder / "first", report, updates=half, saving=True, replay=0
    )
    if not stopped and not first.ended:
        report("third run: going on from there")
        resuming = _with(spec, f"{spec.save} {resume}", half_checkpoint)
        second, stopped = _run(resuming, folder / "second", report, updates=half, keep=half, replay=0, state=True)
        findings += resume_findings(whole, second) if not second.ended else judge_run(second, 0)
    return whole, stopped, sort_findings(findings)


def _with(spec: Audit, options: str, folder: Path) -> Audit:
    folder.mkdir(exist_ok=True)
    return replace(spec, program=(*spec.program, *shlex.split(options.replace("{folder}", str(folder)))))


def _run(spec: Audit, folder: Path, report: Reporter, **wanted: Any) -> tuple[RunJournals, int]:
    """Make one run; return its journals and the number of the signal that stopped it (0: none)."""
    folder.mkdir()
    options = {"updates": spec.updates, "every": spec.every, "replay": spec.replay, "timeout": spec.timeout, **wanted}
    ended, reason = launch_watched(
        spec.launch(logs=folder / "logs"), folder, options, moments=False,
        progress=lambda: _progress(folder, spec.nproc), report=report,
    )  # fmt: skip
    stopped = ended.status - 128 if ended.status > 128 else 0
    return read_journals(folder, spec.nproc, "" if stopped else reason), stopped


def _progress(folder: Path, world: int) -> str | None:
    """Return how far the ranks are, or None when all have made the first update."""
    kinds = [[event["kind"] for event in read_journal(folder, rank)] for rank in range(world)]
    if all("step" in of_rank for of_rank in kinds):
        return None
    progress = "; ".join(
        f"rank {rank}: {', '.join(plural(of_rank.count(kind), kind) for kind in ('forward', 'backward'))}"
        for rank, of_rank in enumerate(kinds)
    )
    return f"waiting for the first update ({progress}); Ctrl-C ends it with a verdict on what was seen"
