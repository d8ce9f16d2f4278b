"""A check: a claim about a run, and the function that tries it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dpbook.runs.audit.findings import Found, Line
from dpbook.runs.audit.journals import Seen

Judge: TypeAlias = Callable[[Seen], Found | None]
"""None where the claim means nothing for a run."""

MOST_NAMES = 3


@dataclass(frozen=True)
class Check:
    """``name`` for programs, ``claim`` for readers, ``book`` where it is explained, ``after`` the checks whose failure
    explains a failure of this one.
    """

    name: str
    claim: str
    book: str
    judge: Judge
    after: tuple[str, ...] = ()

    def line(self, seen: Seen) -> Line | None:
        """What is said of a run."""
        found = self.judge(seen)
        return None if found is None else Line(self.name, self.claim, found, self.book)


def check(name: str, claim: str, book: str = "", after: tuple[str, ...] = ()) -> Callable[[Judge], Check]:
    """Make a check of the function below it."""
    return lambda judge: Check(name, claim, book, judge, after)


def enumerated(names: list[str]) -> str:
    """The first few names, and how many there are."""
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"
