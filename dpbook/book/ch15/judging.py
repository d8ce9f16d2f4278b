"""What audit and launch say of exhibits, and whether that is what it should be."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpbook.book.ch15.collection import SCRIPT, Exhibit
from dpbook.book.ch15.on_ranks import Job, watched
from dpbook.core import checkout
from dpbook.runs.audit import CheckResult, Finding, RunJournals, judge_run, passed, resume_findings

Lines = tuple[Finding, ...]
HALF = 2
"""Updates before and after the restart of a run that is resumed."""
ALONE = ("launch", "preflight")
"""Tools that judge a script in processes of its own."""
_SAID = "dpbook launch: "


def verdicts(of: Sequence[Exhibit], *, cured: bool = False) -> dict[str, Lines]:
    """What is said of each, by its name; of scripts that the audit judges in one start of the ranks."""
    told: dict[str, Lines] = {}
    for world in sorted({each.world for each in of if each.tool not in ALONE}):
        mine = [each for each in of if each.world == world and each.tool not in ALONE]
        mine.sort(
            key=lambda each: "end" in each.follows
        )  # what raises comes last: the ranks may not be of use after it
        with watched([job for each in mine for job in _jobs(each, cured)], world) as left:
            runs = iter(left)
            told |= {each.name: tuple(_lines(each, runs)) for each in mine}
    told |= {each.name: (alone(each, cured=cured),) for each in of if each.tool in ALONE}
    return {each.name: told[each.name] for each in of}


def _jobs(exhibit: Exhibit, cured: bool) -> Iterator[Job]:
    """The runs that it takes."""
    text = exhibit.cured if cured else exhibit.script
    if exhibit.tool != "resume":
        yield Job(text, (), {"updates": exhibit.updates, "replay": 1})
        return
    yield Job(text, (), {"updates": 2 * HALF, "keep": 2 * HALF, "state": True, "replay": 1})
    yield Job(text, ("--out", ".."), {"updates": HALF, "saving": True})
    yield Job(text, ("--out", "..", "--resume"), {"updates": HALF, "keep": HALF, "state": True})


def _lines(exhibit: Exhibit, runs: Iterator[RunJournals]) -> Iterator[Finding]:
    whole = next(runs)
    yield from judge_run(whole, 1)
    if exhibit.tool == "resume":
        next(runs)
        yield from resume_findings(whole, next(runs))


def alone(exhibit: Exhibit, *, cured: bool = False) -> Finding:
    """What `dpbook launch` says at its end, or the preflight, as one line; it passes where there is nothing to say."""
    with tempfile.TemporaryDirectory(prefix="dpbook-museum-") as folder:
        Path(folder, SCRIPT).write_text(exhibit.cured if cured else exhibit.script, encoding="utf-8")
        start = ["-m", "dpbook", "launch", "--nproc", str(exhibit.world), "--"] if exhibit.tool == "launch" else []
        path = os.pathsep.join(filter(None, [str(checkout.root()), os.environ.get("PYTHONPATH")]))
        ended = subprocess.run(
            [sys.executable, *start, SCRIPT], cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
    told = ended.stderr if exhibit.tool == "launch" else ended.stdout
    said = [line.removeprefix(_SAID) for line in told.splitlines() if line.startswith((_SAID, "problem: "))]
    said = [line for line in said if not line.startswith("warning: ")]
    if ended.returncode and not said:
        said = [f"exit status {ended.returncode}"]
    found = CheckResult("FAIL", said[-1]) if said else passed("nothing to say")
    return Finding(exhibit.tool, "the run ends well", found)


def bad(lines: Iterable[Finding]) -> list[Finding]:
    """Those that fail or warn, in their order."""
    return [line for line in lines if line.result.status in ("FAIL", "WARN")]


def differences(exhibit: Exhibit, lines: Lines) -> list[str]:
    """In what a verdict is not what the exhibit declares: its cause first, its consequences under it, nothing else."""
    found = bad(lines)
    if exhibit.status in ("", "PASS"):
        passing = {line.name: line.result.message for line in lines if line.result.status == "PASS"}
        known = not exhibit.status or exhibit.says in passing.get(exhibit.check, "")
        return [f"{line.name} fires" for line in found] + ([] if known else [f"{exhibit.check} does not pass"])
    if not found:
        return ["nothing fires"]
    first, *rest = found
    return [*_of_the_cause(exhibit, first), *_of_the_rest(exhibit, rest)]


def _of_the_cause(exhibit: Exhibit, line: Finding) -> Iterator[str]:
    found = line.result
    if found.status != exhibit.status:
        yield f"{line.name} is {found.status}, not {exhibit.status}"
    if exhibit.says not in found.message:
        yield f"{line.name} does not say {exhibit.says!r}: {found.message}"
    if exhibit.tool in ALONE:
        if not found.message.startswith(exhibit.check):
            yield f"the launch does not begin with {exhibit.check!r}: {found.message}"
        return
    if line.name != exhibit.check or line.because:
        yield f"{line.name} is named first, not {exhibit.check}"
    if found.rank != exhibit.rank:
        yield f"rank {found.rank} is blamed, not {exhibit.rank}"
    if (found.place[2] if found.place else "") != exhibit.place:
        yield f"the line is {found.place}, not {exhibit.place}"


def _of_the_rest(exhibit: Exhibit, rest: Sequence[Finding]) -> Iterator[str]:
    for line in rest:
        if not line.because:
            yield f"{line.name} fires, and follows from nothing"
    if {line.name for line in rest} != set(exhibit.follows):
        yield f"under it stand {sorted(line.name for line in rest)}, not {sorted(exhibit.follows)}"


def tell(lines: Lines, *, most: int = 3) -> None:
    """Print the first of those that fail or warn, with their places; or that nothing does."""
    for line in bad(lines)[:most]:
        found = line.result
        under = f"follows from {line.because}: " if line.because else ""
        told = found.message.splitlines()[0].partition("; relative error")[0]  # its last digits are the machine's
        rank = "" if found.rank is None else f"rank {found.rank}"
        place = f"{found.place[0]}:{found.place[1]}  {found.place[2]}" if found.place else ""
        where = ", ".join(filter(None, [rank, f"update {found.update}" if found.update else "", place]))
        print(f"{found.status}  {under}{line.claim}", told, *filter(None, [where]), sep="\n      ")
    if not bad(lines):
        print(f"nothing fails, nothing warns: {sum(line.result.status == 'PASS' for line in lines)} claims hold")
