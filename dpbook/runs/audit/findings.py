"""Findings of an audit, and the lines in which they are printed."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from dpbook.core import plural

Status: TypeAlias = Literal["PASS", "FAIL", "WARN", "----"]
"""The last one: not tested, and why."""


@dataclass(frozen=True)
class Found:
    """What a check has found.

    Attributes:
        status: what it comes to.
        told: the evidence in words, with its number.
        rank, tensor, update: where it was first seen, as far as there is such a thing.
        place: the script's line, [file, line, text].
    """

    status: Status
    told: str
    rank: int | None = None
    tensor: str | None = None
    update: int | None = None
    place: list[Any] | None = None


@dataclass(frozen=True)
class Line:
    """``found`` by the check ``name``, which holds that ``claim``; ``book`` is where that is explained, and
    ``because`` the name of the failed check from which this failure follows.
    """

    name: str
    claim: str
    found: Found
    book: str = ""
    because: str | None = None

    @property
    def failed(self) -> bool:
        """Whether this line says that the run is wrong."""
        return self.found.status == "FAIL"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        told: dict[str, Any] = asdict(self)
        found: dict[str, Any] = told.pop("found")
        return told | found


def passed(told: str) -> Found:
    """The claim holds, as far as was seen."""
    return Found("PASS", told)


def untested(why: str) -> Found:
    """Nothing can be said."""
    return Found("----", f"not tested: {why}")


def with_causes(lines: Iterable[Line], causes: dict[str, tuple[str, ...]]) -> list[Line]:
    """The failures that follow from others say so, and stand after them. ``causes`` says from which each may."""
    lines = list(lines)
    failed = {line.name for line in lines if line.failed}

    def cause(name: str) -> str | None:
        return next((each for each in causes.get(name, ()) if each in failed), None)

    bad = ("FAIL", "WARN")
    told = [replace(line, because=cause(line.name)) if line.found.status in bad else line for line in lines]
    return in_order(told)


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Failures first, what follows from them after them, and what was not tested last."""
    return sorted(lines, key=_order)


def _order(line: Line) -> int:
    if line.failed:
        return 0 if line.because is None else 1
    return {"WARN": 2, "PASS": 3, "----": 4}[line.found.status]


WIDTH = 66


def in_words(lines: Sequence[Line], updates: int, cost: float | None) -> str:
    """All lines, and a sum: how many causes, warnings and ``updates`` there were, and what watching cost."""
    told = [text for line in lines for text in _in_words(line)]
    if not updates:
        told.append(f"{'----':6}{'an update was seen':{WIDTH}}none: is it an optimizer of torch.optim that steps?")
    if not any(line.name.startswith("resume") for line in lines):
        told.append(f"{'----':6}{'a run that is ended goes on exactly':{WIDTH}}not tested: --resume says how")
    failed = [line for line in lines if line.failed and line.because is None]
    warned = sum(line.found.status == "WARN" for line in lines)
    seen = plural(updates, "update")
    sums = f"{plural(len(failed), 'cause')} of failure, {plural(warned, 'warning')}; {seen} seen"
    price = "" if cost is None else f"; watching cost {cost:.1%} of an update"
    return "\n".join([*told, f"{sums}{price}"])


def _in_words(line: Line) -> list[str]:
    found = line.found
    where = [
        f"rank {found.rank}" if found.rank is not None else "",
        found.tensor or "",
        f"update {found.update}" if found.update else "",
    ]
    indent = "  " if line.because else ""
    told = [f"{indent}{found.status:6}{line.claim:{WIDTH}}{found.told}"]
    if found.status in ("FAIL", "WARN"):
        follows = f"follows from: {line.because}" if line.because else ""
        at = f"{found.place[0]}:{found.place[1]}  {found.place[2]}" if found.place else ""
        more = [", ".join(filter(None, where)), follows, at, line.book]
        told.append(indent + " " * 6 + "   ".join(filter(None, more)))
    return told
