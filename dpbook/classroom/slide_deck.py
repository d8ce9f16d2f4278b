"""Slides of a chapter, made from its cells: title, sections, questions, answers with the run, pictures, summary.

The deck is one HTML file that needs no network: formulas are MathML, and links to other notebooks become their text.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import mistune

from dpbook.classroom.tasks.notebook_cells import Cell, as_python, read, source, tags
from dpbook.core import DpbookError, mathml, palette, render_page, write_atomically


def html(markdown: str) -> str:
    """The words of a cell, or a part of them."""
    return str(_READER(markdown))


def sentences(paragraph: str, most: int) -> str:
    """The first sentences of a paragraph."""
    return " ".join(re.split(r"(?<=[.!?])\s+(?=[A-Z`*$(])", " ".join(paragraph.split()))[:most])


class _Renderer(mistune.HTMLRenderer):
    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def inline_math(self, text: str) -> str:
        return mathml(text)

    def block_math(self, text: str) -> str:
        return f'<p class="formula">{mathml(text, block=True)}</p>\n'


_READER = mistune.create_markdown(renderer=_Renderer(), plugins=["table", "math"])


MOST_LINES = 12
ANSWER = re.compile(r"<details>\s*<summary>Answer</summary>(.*?)</details>", re.DOTALL)
PREDICT = "**Predict.**"
IMAGE = re.compile(r"<img\b[^>]*>")
BLOCKS = ("-", "1.", "|", "$")
"""With what lists, tables and formulas begin."""
MEASURED = "Measured on one machine: another's numbers differ."


class Slide(NamedTuple):
    """Content of a slide, as HTML; ``kind`` is title, section, question, answer, picture or summary."""

    kind: str
    heading: str
    body: str


def write_slides(notebook: Path, folder: Path) -> Path:
    """Write the deck of a chapter's notebook into ``folder`` and return its path. Raises `DpbookError`."""
    try:
        made = list(slides(read(notebook)["cells"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DpbookError(f"{notebook} cannot be read as a notebook ({error!r})") from None
    if not made:
        raise DpbookError(f"{notebook} has no cell from which a slide can be made")
    page = render_page("slides.html", title=made[0].heading, slides=made, palette=palette)
    path = folder / f"{notebook.stem}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise DpbookError(f"{path} cannot be written ({error.strerror})") from None
    return path


def slides(cells: Sequence[Cell]) -> Iterator[Slide]:
    """The beats of a chapter in order. What a reader reads between them is left to who speaks."""
    section = ""
    for place, cell in enumerate(cells):
        if cell["id"] == "ways-on":
            return
        if cell["cell_type"] == "markdown":
            words = source(cell).partition("**Further reading**")[0]
            if found := re.match(r"#{1,2} (.+)\n*", words):
                kind = "section" if section else "title"
                section, words = found[1].strip(), words[found.end() :]
                yield from _opening(kind, section, words, cells[place + 1 :])
            yield from _questions(section, words, cells[place + 1 :])
        else:
            for image in _images(cell):
                yield Slide("picture", section, image + _caption(cell, cells[place + 1 :]))


def _opening(kind: str, heading: str, words: str, behind: Sequence[Cell]) -> Iterator[Slide]:
    if heading == "Summary":
        yield Slide("summary", heading, html(words))
    elif kind == "title":
        yield Slide(kind, heading, "".join(html(sentences(part, 3)) for part in words.split("\n\n")[:2]))
    elif not ANSWER.search(words):  # a question says its section
        first, _, rest = words.partition("\n\n")
        if first.endswith(":") and not rest:  # the cell behind follows
            said = sentences(first, 3)
            yield Slide(kind, heading, html(said) + (_example(behind) if said.endswith(":") else ""))
        elif first.endswith(":"):  # a list or a formula follows
            yield Slide(kind, heading, html(f"{sentences(first, 3)}\n\n{rest.partition(chr(10) * 2)[0]}"))
        elif first:
            yield Slide(kind, heading, html(first if first.startswith(BLOCKS) else sentences(first, 3)))


def _example(behind: Sequence[Cell]) -> str:
    """The code of the next cell, and what it says."""
    cell = next(iter(behind), None)
    if cell is None or cell["cell_type"] != "code" or "yours" in tags(cell):
        return ""
    return _pre(source(cell).splitlines()) + _said([cell])


def _questions(section: str, words: str, behind: Sequence[Cell]) -> Iterator[Slide]:
    """Each question, and on a slide of its own its answer, the last with what the cells behind it say."""
    begin, found = 0, list(ANSWER.finditer(words))
    for match in found:
        before = words[begin : match.start()].strip()
        context, _, question = before.rpartition(PREDICT if PREDICT in before else "\n\n")
        asked = html(question.strip())
        said = html(_lead(context))
        yield Slide("question", section, f'<div class="context">{said}</div>{asked}')
        run = _run(behind) if match is found[-1] else ""
        yield Slide("answer", section, f'<div class="context">{asked}</div>{html(match[1].strip())}{run}')
        begin = match.end()


def _lead(context: str) -> str:
    """The last paragraph before a question; with the one before where it is a list, a table or a formula."""
    *before, last = context.strip().split("\n\n")
    return "\n\n".join([*before[-1:], last] if last.startswith(BLOCKS) else [last])


def _run(behind: Sequence[Cell]) -> str:
    """Return the output and the assertions of the cells up to the next text."""
    ran = [cell for cell in takewhile(lambda cell: cell["cell_type"] == "code", behind) if "yours" not in tags(cell)]
    claims = [claim for cell in ran for claim in _asserts(source(cell))]
    return _said(ran) + (f'<pre class="claim">{escape(chr(10).join(claims))}</pre>' if claims else "")


def _said(ran: Sequence[Cell]) -> str:
    """Return the printed output of cells, and the values of their last lines unless these are pictures."""
    lines = "\n".join(text for cell in ran for out in cell["outputs"] if (text := _words(out))).splitlines()
    note = f'<p class="note">{MEASURED}</p>' if any("measurement" in tags(cell) for cell in ran) else ""
    return _pre(lines) + note if lines else ""


def _words(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    plain = data["text/plain"] if list(data) == ["text/plain"] else ""
    return "".join(output["text"] if output.get("name") == "stdout" else plain).strip("\n")


def _pre(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join([*lines[:MOST_LINES], '…'] if len(lines) > MOST_LINES else lines))}</pre>"


def _asserts(text: str) -> list[str]:
    code = as_python(text)
    return [
        ast.get_source_segment(code, node) or "" for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert)
    ]


def _images(cell: Cell) -> Iterator[str]:
    """The pictures that a cell shows; of a film the frames that move by themselves."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if found := IMAGE.search("".join(data.get("text/html", ""))):
            yield re.sub(r' (width|style)="[^"]*"', "", found[0])


def _caption(cell: Cell, behind: Sequence[Cell]) -> str:
    """The sentence with which the words behind the picture begin, unless these are about something else."""
    note = f'<p class="note">{MEASURED}</p>' if "measurement" in tags(cell) else ""
    words = next((source(other) for other in behind if other["cell_type"] == "markdown"), "")
    paragraph, _, rest = words.partition("\n\n")
    sentence = sentences(paragraph, 1)
    leads_on = sentence.endswith((":", "?")) or rest.startswith(PREDICT)  # to what is no matter of the picture
    if words.startswith(("#", "**", *BLOCKS)) or leads_on or len(sentence.split()) < 6:
        return note
    return html(sentence) + note
