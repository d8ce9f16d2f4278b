"""Definition of a check: a claim about a run and the function that tests it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dpbook.runs.audit.findings import CheckResult, Finding
from dpbook.runs.audit.journals import RunJournals

Judge: TypeAlias = Callable[[RunJournals], CheckResult | None]
"""Function that tests a claim; it returns None if the claim does not apply to the run."""

MAX_NAMES = 3


@dataclass(frozen=True)
class RunCheck:
    """Claim about a run and the function that tests it.

    Attributes:
        name: name of the check, for programs.
        claim: the claim in words, for readers.
        book: chapter that explains the claim.
        judge: function that tests the claim.
        after: names of the checks whose failure explains a failure of this one.
    """

    name: str
    claim: str
    book: str
    judge: Judge
    after: tuple[str, ...] = ()

    def finding(self, run: RunJournals) -> Finding | None:
        """Return the finding of this check for a run, or None if the claim does not apply to it."""
        result = self.judge(run)
        return None if result is None else Finding(self.name, self.claim, result, self.book)


def check(name: str, claim: str, book: str = "", after: tuple[str, ...] = ()) -> Callable[[Judge], RunCheck]:
    """Return a decorator that turns a function into a check."""
    return lambda judge: RunCheck(name, claim, book, judge, after)


def enumerated(names: list[str]) -> str:
    """Join the first `MAX_NAMES` names, and add the number of the others."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
