"""Check that a run that resumes from its checkpoint continues as an uninterrupted run does.

The script runs three times: once for 2k updates; once until it is stopped after k updates, when it has had time to
save; and once resuming from that checkpoint. At the first update after the restart everything must be the same as in
the first run at that point, bit for bit, on every rank. Afterwards bits may differ: with three ranks or more torch's
DDP adds in another order after a restart, because its buckets follow the order of a process's first update. The end is
therefore compared within a tolerance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbook.core import plural
from dpbook.runs.audit.findings import CheckResult, Finding, link_causes, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_difference
from dpbook.runs.audit.replay_gradients import load
from dpbook.runs.watching.journal import FINAL_PARAMETERS, Event

BOOK = "chapter 11"
OPTIMIZER, END = "the optimizer's state is restored", "the resumed run ends like the uninterrupted one"
END_TOLERANCE = 1e-5
"""Relative difference at the end: another order of additions stays far below it, a lost state exceeds it by far."""


class ResumedRun:
    """An uninterrupted run, and one that resumed after update ``after`` of it.

    Attributes:
        pairs: updates that should be the same, of the whole run and of the resumed run, by optimizer and number.
        first_updates: the first pair of each optimizer.
    """

    def __init__(self, whole: RunJournals, resumed: RunJournals, after: int) -> None:
        self.whole, self.resumed, self.after = whole, resumed, after
        self.by_number = {(update.optimizer, update.number): update for update in whole.updates}
        known = [(self.by_number.get((each.optimizer, each.number + after)), each) for each in resumed.updates]
        self.pairs = [(other, update) for other, update in known if other is not None]
        self.first_updates = [pair for pair in self.pairs if pair[1].number == 1]


def resume_findings(whole: RunJournals, resumed: RunJournals) -> list[Finding]:
    """Return one finding for each part of the training state: was it restored from the checkpoint?"""
    claim = "a resumed run begins with the parameters that were saved"
    if not resumed.updates or not whole.updates:
        return [Finding("resume", claim, untested("one of the runs made no update"), BOOK)]
    after = _resumed_update(whole, resumed)
    if not after:
        message = "the resumed run starts from the beginning"
        if after is None:
            message = "the parameters before its first update match no update of the run without a break"
        result = CheckResult("FAIL", message, place=resumed.updates[0].steps[0]["place"])
        return [Finding("resume", claim, result, BOOK)]
    both = ResumedRun(whole, resumed, after)
    findings = [Finding("resume", claim, passed(f"those after update {after}, bit for bit"), BOOK)]
    if not both.pairs:
        reason = f"the run without a break ended after its update {after}; give that run its own options with --whole"
        claims = {"optimizer": OPTIMIZER, **{aspect.name: aspect.claim for aspect in ASPECTS[:3]}, "end": END}
        findings += [Finding(f"resume {name}", text, untested(reason), BOOK) for name, text in claims.items()]
        return findings
    results = (
        ("optimizer", OPTIMIZER, _optimizer(both)),
        *((aspect.name, aspect.claim, _compared(aspect, both)) for aspect in ASPECTS),
        ("end", END, _end(both)),
    )
    findings += [Finding(f"resume {name}", claim, result, BOOK) for name, claim, result in results if result]
    names = tuple(finding.name for finding in findings)
    return link_causes(findings, {"resume end": names[:-1]})


def _resumed_update(whole: RunJournals, resumed: RunJournals) -> int | None:
    """Return the update of the whole run after which its parameters were those with which the resumed run begins."""
    matches = []
    for update in resumed.updates:
        if update.number == 1:
            before = [step["before"] for step in update.steps]
            others = [other for other in whole.updates if other.optimizer == update.optimizer]
            same = {each.number for each in others if [after["parameters"] for after in each.stepped] == before}
            starts = [each for each in others if each.number == 1]
            same |= {0 for each in starts if [step["before"] for step in each.steps] == before}
            matches.append(same)
    return max(set.intersection(*matches), default=None) if matches else None


def _optimizer(both: ResumedRun) -> CheckResult | None:
    for _, update in both.first_updates:
        saved = both.by_number[update.optimizer, both.after]
        for rank in range(both.resumed.world):
            there, here = saved.stepped[rank]["state"], update.steps[rank]["state_before"]
            if there and not here:
                message = "the optimizer starts without its state (momentum, moments)"
                return CheckResult("FAIL", message, rank, None, 1, update.steps[rank]["place"])
            differs = first_difference([there, here], list(there))
            if differs:
                message = f"{differs[2]} of the optimizer's {plural(len(there), 'tensor')} differ"
                return CheckResult("FAIL", message, rank, differs[0], 1, update.steps[rank]["place"])
    return passed("bit for bit, on every rank")


@dataclass(frozen=True)
class Aspect:
    """A part of the training state that must be the same at the first update after the restart.

    Attributes:
        name, claim: for the finding.
        take: returns the part from a rank's events before an update, or None if they do not have it.
        lost: message if it differs; ``{there}`` is the part in the whole run, ``{here}`` that in the resumed run.
        restored: message if it is the same on all ranks.
        always: whether it must be the same at all later updates too.
    """

    name: str
    claim: str
    take: Callable[[Update, int], Any]
    lost: str
    restored: str = "the same"
    always: bool = False


def _compared(aspect: Aspect, both: ResumedRun) -> CheckResult | None:
    """Compare both runs; fail on the first rank where they differ. None if neither has this part."""
    compared = False
    for other, update in both.pairs if aspect.always else both.first_updates:
        for rank in range(both.resumed.world):
            there, here = aspect.take(other, rank), aspect.take(update, rank)
            if there is None or here is None:
                continue
            compared = True
            if there != here:
                message = aspect.lost.format(there=there, here=here)
                return CheckResult("FAIL", message, rank, None, update.number, update.steps[rank]["place"])
    return passed(aspect.restored) if compared else None


def _first(update: Update, rank: int, kind: str) -> Event:
    """Return a rank's first event of a kind before an update; an empty one if there is none."""
    return next(iter(update.of(kind)[rank]), {})


def _random_state(update: Update, rank: int) -> Any:
    forward = _first(update, rank, "forward")
    return forward["random"] if forward.get("drawn") else None


ASPECTS = (
    Aspect(
        "rates", "the learning rate continues", lambda update, rank: update.steps[rank]["rates"] or None,
        "the learning rates of its groups are {here} where they were {there}: is the scheduler's state restored?",
        "the same in all updates", always=True,
    ),
    Aspect(
        "random", "random states are restored", _random_state,
        "the random state differs, so dropout drops other units: each rank must save its own", "the same on every rank",
    ),
    Aspect(
        "examples", "the data continue where they stopped",
        lambda update, rank: [event["rows"] for event in update.of("forward")[rank]] or None,
        "the resumed run reads other examples: its position in the epoch or the order was not restored",
    ),
    Aspect(
        "buffers", "buffers are restored", lambda update, rank: _first(update, rank, "forward").get("buffers") or None,
        "buffers such as running statistics differ", "bit for bit, on every rank",
    ),
    Aspect(
        "scaler", "the gradient scaler's factor is restored",
        lambda update, rank: _first(update, rank, "scaler").get("scale"),
        "the scaler's factor is {here:g} where it was {there:g}",
    ),
)  # fmt: skip


def _end(both: ResumedRun) -> CheckResult | None:
    """Compare the parameters of both runs after each update; if their bits differ, judge the last difference."""
    compared = 0
    for other, update in both.pairs:
        if not other.stepped or not update.stepped:
            continue
        compared += 1
        steps = zip(other.stepped, update.stepped, strict=True)
        if any(there["parameters"] != here["parameters"] for there, here in steps):
            return _end_difference(both, update)
    return passed(f"{plural(compared, 'update')}, bit for bit") if compared else None


def _end_difference(both: ResumedRun, update: Update) -> CheckResult:
    paths = []
    for run in (both.resumed, both.whole):
        assert run.folder is not None
        paths.append(run.folder / FINAL_PARAMETERS.format(0, update.optimizer))
    if not all(path.exists() for path in paths):
        return untested("the bits differ, but the runs ended at different updates")
    ours, theirs = map(load, paths)
    errors = {
        name: float(np.linalg.norm(ours[name] - theirs[name]) / (np.linalg.norm(theirs[name]) or 1.0))
        for name in ours
        if name in theirs
    }
    name = max(errors, key=errors.__getitem__)
    if errors[name] <= END_TOLERANCE:
        message = f"relative difference {errors[name]:.1e} ({name}), as from another order of additions"
        return passed(f"{message}; the bits differ from update {both.after + update.number} on")
    message = f"relative difference {errors[name]:.1e}, larger than rounding explains"
    return CheckResult("FAIL", message, 0, name, both.after + update.number)
