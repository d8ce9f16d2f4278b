"""Results of an answer: a `Case` per check, and the `Report` of all, as text and as HTML without scripts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from dpbook.core import palette, plural

_CODE = re.compile(r"`([^`\n]+)`")
_PYTHON = ("call", "expected", "came")


def marked(text: str) -> str:
    """Plain text as HTML, with what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def page(report: "Report") -> str:
    """A report: points as a bar, a line per check, and what there is to say of it."""
    parts = [f"<p><strong>{escape(report.headline)}</strong></p>"]
    if report.answered:
        parts.append(_bar(report))
        parts.append(f'<ul style="list-style: none; padding-left: 0.5em">{"".join(map(_item, report.cases))}</ul>')
    if report.printed:
        parts.append(f"<details><summary>printed by your code</summary><pre>{escape(report.printed)}</pre></details>")
    parts += [f"<p><em>{escape(note)}</em></p>" for note in report.notes]
    return f"<div>{''.join(parts)}</div>"


def _bar(report: "Report") -> str:
    """A piece for each check, as wide as its points: full if it passed, an empty frame if not."""
    pieces = (
        f'<span style="flex: {case.points} 0 0; border: 1px solid {_colour(case)};'
        f' background: {_colour(case) if case.passed else "none"}"></span>'
        for case in report.cases
    )
    said = f"{report.points} of {plural(report.possible, 'point')}"
    style = "display: flex; gap: 2px; max-width: 24em; height: 0.7em; margin: 0.4em 0.5em"
    return f'<div role="img" aria-label="{said}" style="{style}">{"".join(pieces)}</div>'


def _colour(case: "Case") -> str:
    return palette.PASS if case.passed else palette.FAIL


def _item(case: "Case") -> str:
    style = f"display: inline-block; width: 1.4em; border-radius: 3px; text-align: center; background: {_colour(case)}"
    sign, said = ("✓", "passed") if case.passed else ("✗", "failed")
    head = f'<span role="img" aria-label="{said}" style="{style}; color: white">{sign}</span> '
    head += f"<strong>{marked(case.name)}</strong> ({plural(case.points, 'point')})"
    head += f": {marked(case.verdict)}" if case.verdict else ""
    return f'<li style="margin-bottom: 0.4em">{head}{_details(case)}</li>'


def _details(case: "Case") -> str:
    left = "text-align: left; vertical-align: top"
    rows = "".join(
        f'<tr><th scope="row" style="{left}; padding-right: 0.8em">{label}</th><td style="{left}">{said}</td></tr>'
        for label, said in _said(case)
    )
    return f'<table style="margin-left: 1.4em">{rows}</table>' if rows else ""


def _said(case: "Case") -> Iterator[tuple[str, str]]:
    """Label and HTML of each detail: Python and numbers keep their columns."""
    for label, text in case.details():
        kept = label == "call" or (label in _PYTHON and "\n" in text)
        yield (
            label,
            f'<pre style="margin: 0; background: none; white-space: pre-wrap">{escape(text)}</pre>'
            if kept
            else marked(text),
        )


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
        """Few words that follow the name of the check, or "" if details follow."""
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
