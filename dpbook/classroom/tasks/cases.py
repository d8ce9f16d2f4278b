"""What came of one answer: a `Case` per check, and the `Report` of all."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dpbook.classroom.tasks.report_html import page
from dpbook.core import plural


@dataclass(frozen=True)
class Case:
    """One check and what came of it. All strings are plain text, ready to show.

    ``call`` is the call that failed, as Python. ``cause`` is the same text in all cases that ended in the same way, and
    ``like`` the name of the first of these, where the cause is told.
    """

    name: str
    points: int
    passed: bool
    expected: str = ""
    got: str = ""
    where: str = ""
    why: str = ""
    note: str = ""
    answered: bool = True
    call: str = ""
    cause: str = ""
    like: str = ""

    @property
    def verdict(self) -> str:
        """What stands behind the name of the check, in a few words; nothing where details follow."""
        if not self.answered:
            return "not answered yet"
        return f"stopped by the same cause as “{self.like}”" if self.like else self.note

    def details(self) -> Iterator[tuple[str, str]]:
        """For a case that failed in a way not told yet: label and text of what there is to say."""
        if not self.passed and self.answered and not self.like:
            rows = (
                ("call", self.call),
                ("expected", self.expected),
                ("came", self.got),
                ("where", self.where),
                ("why", self.why),
            )
            yield from ((label, text) for label, text in rows if text)


@dataclass(frozen=True)
class Report:
    """The cases of one task, in order. Shown as text or, in a notebook, as HTML; neither contains a time."""

    task: str
    title: str
    cases: tuple[Case, ...]
    seconds: float = field(default=0.0, compare=False)
    printed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Points earned."""
        return sum(case.points for case in self.cases if case.passed)

    @property
    def possible(self) -> int:
        """Points that could be earned."""
        return sum(case.points for case in self.cases)

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return all(case.passed for case in self.cases)

    @property
    def answered(self) -> bool:
        """Whether there is an answer at all, rather than the stub."""
        return any(case.answered for case in self.cases)

    @property
    def headline(self) -> str:
        """Task, title and result in one line."""
        result = f"{self.points} of {plural(self.possible, 'point')}"
        return f"{self.task} {self.title}: {result if self.answered else f'not answered yet, {result}'}"

    def __repr__(self) -> str:
        lines = [self.headline]
        for case in self.cases if self.answered else ():
            said = f": {case.verdict}" if case.verdict else ""
            lines.append(f"  {'✓' if case.passed else '✗'} {case.name} ({plural(case.points, 'point')}){said}")
            lines += [_indented(f"      {label + ':':9} ", text) for label, text in case.details()]
        if self.printed:
            lines += ["  printed by your code:", *(f"      {line}" for line in self.printed.splitlines())]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return page(self)


def _indented(label: str, text: str) -> str:
    return label + text.replace("\n", "\n" + " " * len(label))
