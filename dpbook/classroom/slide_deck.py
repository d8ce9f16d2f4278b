"""Slides of a chapter, made from its cells: title, sections, questions, answers, runs, pictures, summary, exercise.

Each slide has one idea. Its notes are for the speaker: the words of the chapter that stand around it, and what to ask.
The deck is one HTML file that needs no network: formulas are MathML, links to other notebooks become their text, and
players step as they do in the notebook.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import mistune

from dpbook.classroom.tasks.load_tasks import Task, list_tasks
from dpbook.classroom.tasks.notebook_cells import Cell, as_python, read, source, tags
from dpbook.core import DpbookError, mathml, palette, render_page, write_atomically
from dpbook.figures import PLAYER_MIME


def html(markdown: str) -> str:
    """Return the words of a cell, or a part of them."""
    return str(_READER(markdown))


def sentences(paragraph: str, most: int) -> str:
    """Return the first sentences of a paragraph, without those that point at a place in the notebook."""
    found = re.split(r"(?<=[.!?])\s+(?=[A-Z`*$(])", " ".join(paragraph.split()))
    return " ".join([sentence for sentence in found if not PLACES.search(sentence)][:most])


class _Renderer(mistune.HTMLRenderer):
    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def inline_math(self, text: str) -> str:
        return mathml(text)

    def block_math(self, text: str) -> str:
        return f'<p class="formula">{mathml(text, block=True)}</p>\n'


_READER = mistune.create_markdown(renderer=_Renderer(escape=False), plugins=["table", "math"])


MOST_LINES, MOST_DEFINED = 12, 18
"""Lines of code or output on a slide, and lines of a class or function."""
PLACES = re.compile(r"\b(?:(?:viewer|player|picture|explorer|table|Play|cells?) below|next (?:\w+ )?cells?)\b")
"""What only a reader of the notebook sees."""
ANSWER = re.compile(r"<details>\s*<summary>Answer</summary>(.*?)</details>", re.DOTALL)
PREDICT = "**Predict.**"
IMAGE = re.compile(r"<img\b[^>]*>")
BLOCKS = ("-", "1.", "|", "$")
"""With what lists, tables and formulas begin."""
MEASURED = "Measured on one machine: another's numbers differ."
ASK = "Let everybody write down an answer, or raise a hand for one, before you continue. Ask somebody to explain it."


class Slide(NamedTuple):
    """Content of a slide and the speaker's notes, as HTML.

    ``kind`` is title, section, question, answer, run, picture, summary or exercise, which lists its ``tasks``.
    """

    kind: str
    heading: str
    body: str
    notes: str = ""
    tasks: Sequence[Task] = ()


def write_slides(notebook: Path, folder: Path) -> Path:
    """Write the deck of a chapter's notebook into ``folder`` and return its path. Raises `DpbookError`."""
    try:
        made = list(slides(read(notebook)["cells"]))
        if re.match(r"\d\d_", notebook.stem) and (tasks := list_tasks(int(notebook.stem[:2]))):
            made.append(Slide("exercise", "The exercise", "", tasks=tasks))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DpbookError(f"{notebook} is not a readable notebook ({error!r})") from None
    if not made:
        raise DpbookError(f"{notebook} has no cell from which a slide can be made")
    page = render_page("slides.html", title=made[0].heading, slides=made, palette=palette)
    path = folder / f"{notebook.stem}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page.encode())
    except OSError as error:
        raise DpbookError(f"cannot write {path} ({error.strerror})") from None
    return path


def slides(cells: Sequence[Cell]) -> Iterator[Slide]:
    """Yield the slides of a chapter in order. The text between them is left to the speaker."""
    section, asked = "", False
    for place, cell in enumerate(cells):
        if cell["id"] == "ways-on":
            return
        if cell["cell_type"] == "markdown":
            *parts, last = re.split(r"(?m)^(?=#{1,2} )", source(cell).partition("**Further reading**")[0])
            for words, behind in [*((part, ()) for part in parts), (last, cells[place + 1 :])]:
                if found := re.match(r"#{1,2} (.+)\n*", words):
                    kind = "section" if section else "title"
                    section, words = found[1].strip(), words[found.end() :]
                    for slide in _opening(kind, section, words, behind):
                        yield slide._replace(notes=slide.notes or html(words))
                yield from _questions(section, words, behind)
                asked = bool(ANSWER.search(words))
        else:
            lines = source(cell).splitlines()
            if not asked and lines[0].startswith(("class ", "def ")) and len(lines) <= MOST_DEFINED:
                yield Slide("run", section, _pre(lines, MOST_DEFINED), _lesson(cells[place + 1 :]))
            for image in _images(cell):
                behind = cells[place + 1 :]
                yield Slide("picture", section, image + _caption(cell, behind), _lesson(behind))


def _opening(kind: str, heading: str, words: str, behind: Sequence[Cell]) -> Iterator[Slide]:
    if heading == "Summary":
        yield Slide("summary", heading, html(words))
    elif kind == "title":
        objectives = next((source(cell) for cell in behind if cell["id"] == "objectives"), "")
        shown = "".join(html(sentences(part, 3)) for part in words.split("\n\n")[:2])
        yield Slide(kind, heading, shown, html(words) + html(objectives))
    elif not ANSWER.search(words):  # a question says its section
        first, _, rest = words.partition("\n\n")
        listed = re.search(r"(?m)^(?:- .*|1\. .*)(?:\n(?:- |\d\. |  ).*)*", rest)
        if first.endswith(":") and not rest:  # the cell behind follows
            prose, cell = sentences(first, 3), next(iter(behind), None)
            body = html(prose)
            if prose.endswith(":") and cell and cell["cell_type"] == "code" and "yours" not in tags(cell):
                body += _pre(source(cell).splitlines()) + _printed([cell])
            yield Slide(kind, heading, body)
        elif first.endswith(":"):  # a list or a formula follows
            yield Slide(kind, heading, html(f"{sentences(first, 3)}\n\n{rest.partition(chr(10) * 2)[0]}"))
        elif first:
            shown = html(first if first.startswith(BLOCKS) else sentences(first, 3))
            yield Slide(kind, heading, shown + (html(listed[0]) if listed else ""))


def _questions(section: str, words: str, behind: Sequence[Cell]) -> Iterator[Slide]:
    """Yield each question, its answer on the next slide, and after the last one the run that shows it."""
    begin, found = 0, list(ANSWER.finditer(words))
    for match in found:
        before = words[begin : match.start()].strip()
        context, _, question = before.rpartition(PREDICT if PREDICT in before else "\n\n")
        asked = html(question.strip())
        *earlier, lead = context.strip().split("\n\n")
        if lead.startswith(BLOCKS):  # it comes with the words that introduce it
            lead = "\n\n".join([*earlier[-1:], lead])
        prose = html(lead)
        yield Slide("question", section, f'<div class="context">{prose}</div>{asked}', html(context) + html(ASK))
        yield Slide("answer", section, f'<div class="context">{asked}</div>{html(match[1].strip())}')
        begin = match.end()
    if found and (run := _run(behind)):
        yield Slide("run", section, run, _lesson(behind))


def _run(behind: Sequence[Cell]) -> str:
    """Return the code of the cells up to the next text, where it is short, without assertions, and their output."""
    ran = [cell for cell in takewhile(lambda cell: cell["cell_type"] == "code", behind) if "yours" not in tags(cell)]
    texts = [as_python(source(cell)) for cell in ran]
    nodes = ((text, node) for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert))
    code = "\n".join(source(cell) for cell in ran if not any(_images(cell)))
    for text, node in nodes:
        code = code.replace(ast.get_source_segment(text, node) or "", "")
    lines = [line for line in code.splitlines() if line.strip()]
    shown = _printed(ran)
    return (_pre(lines) if 0 < len(lines) <= MOST_LINES else "") + shown if shown else ""


def _lesson(behind: Sequence[Cell]) -> str:
    """Return the next words of the chapter, up to a question, unless another section begins."""
    words = next((source(cell) for cell in behind if cell["cell_type"] == "markdown"), "")
    return "" if words.startswith("#") else html(words.partition(PREDICT)[0])


def _printed(ran: Sequence[Cell]) -> str:
    """Return the printed output of cells, and the values of their last lines unless these are pictures."""
    texts = []
    for output in (output for cell in ran for output in cell["outputs"]):
        data = output.get("data", {})
        plain = data["text/plain"] if list(data) == ["text/plain"] else ""
        texts.append("".join(output["text"] if output.get("name") == "stdout" else plain).strip("\n"))
    lines = "\n".join(filter(None, texts)).splitlines()
    return _pre(lines) + _measured(ran) if lines else ""


def _measured(ran: Sequence[Cell]) -> str:
    """Return the note on cells that measure, if one of them does."""
    return f'<p class="note">{MEASURED}</p>' if any("measurement" in tags(cell) for cell in ran) else ""


def _pre(lines: Sequence[str], most: int = MOST_LINES) -> str:
    return f"<pre>{escape(chr(10).join([*lines[:most], '…'] if len(lines) > most else lines))}</pre>"


def _images(cell: Cell) -> Iterator[str]:
    """Yield the pictures that a cell shows, and its players."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if PLAYER_MIME in data:
            yield "".join(data["text/html"])
        elif found := IMAGE.search("".join(data.get("text/html", ""))):
            yield re.sub(r' (width|style)="[^"]*"', "", found[0])


def _caption(cell: Cell, behind: Sequence[Cell]) -> str:
    """Return the sentence with which the text after the picture begins, unless it is about something else."""
    note = _measured([cell])
    following = next((other for other in behind if other["cell_type"] == "markdown"), None)
    words = source(following) if following and following["id"] != "objectives" else ""
    paragraph, _, rest = words.partition("\n\n")
    sentence = sentences(paragraph, 1)
    leads_on = sentence.endswith((":", "?")) or rest.startswith(PREDICT)  # to what is no matter of the picture
    if words.startswith(("#", "**", *BLOCKS)) or leads_on or len(sentence.split()) < 6:
        return note
    return html(sentence) + note
