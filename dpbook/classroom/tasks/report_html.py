"""Reports, hints and tables as HTML without scripts, readable in a light and in a dark theme."""

import re
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from dpbook.core import palette, plural

if TYPE_CHECKING:
    from dpbook.classroom.tasks.cases import Case, Report

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
