"""What came of one answer: a `Case` per check, and the `Report` of all."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from dpbook.core import plural


@dataclass(frozen=True)
class Case:
    """One check and what came of it. All strings are plain text, ready to show."""

    name: str
    points: int
    passed: bool
    expected: str = ""
    got: str = ""
    where: str = ""
    why: str = ""
    note: str = ""
    answered: bool = True

    def details(self) -> Iterator[tuple[str, str]]:
        """For a case that failed: label and text of what there is to say."""
        if not self.passed and self.answered:
            rows = (("expected", self.expected), ("came", self.got), ("where", self.where), ("why", self.why))
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
            lines.append(f"  {_mark(case)} {case.name} ({plural(case.points, 'point')}){_note(case)}")
            lines += [f"      {label + ':':9} {text}" for label, text in case.details()]
        if self.printed:
            lines += ["  printed by your code:", *(f"      {line}" for line in self.printed.splitlines())]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{escape(self.headline)}</strong></p>"]
        if self.answered:
            parts.append(f'<ul style="list-style: none; padding-left: 0.5em">{"".join(map(_item, self.cases))}</ul>')
        if self.printed:
            parts.append(f"<details><summary>printed by your code</summary><pre>{escape(self.printed)}</pre></details>")
        parts += [f"<p><em>{escape(note)}</em></p>" for note in self.notes]
        return f"<div>{''.join(parts)}</div>"


def _mark(case: Case) -> str:
    return "✓" if case.passed else "✗"


def _note(case: Case) -> str:
    if not case.answered:
        return ": not answered yet"
    return f": {case.note}" if case.note else ""


def _item(case: Case) -> str:
    said = "passed" if case.passed else "failed"
    head = f'<span role="img" aria-label="{said}">{_mark(case)}</span> <strong>{escape(case.name)}</strong> '
    head += escape(f"({plural(case.points, 'point')}){_note(case)}")
    # No colours: the text keeps those of the page, light or dark.
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left; vertical-align: top">{label}</th>'
        f'<td style="text-align: left; white-space: pre-wrap">{escape(text)}</td></tr>'
        for label, text in case.details()
    )
    return f'<li style="margin-bottom: 0.4em">{head}{f"<table>{rows}</table>" if rows else ""}</li>'
