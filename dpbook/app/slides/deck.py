"""The slides of a chapter, made from its cells: title, sections, questions, answers with the run, pictures, summary."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader

from dpbook.app.slides.words import html, sentences
from dpbook.core import DpbookError, files

Cell = dict[str, Any]
TEMPLATES = Environment(loader=PackageLoader("dpbook", "data"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
MOST_LINES = 12
ANSWER = re.compile(r"<details>\s*<summary>Answer</summary>(.*?)</details>", re.DOTALL)
PREDICT = "**Predict.**"
IMAGE = re.compile(r"<img\b[^>]*>")
MEASURED = "Measured on one machine: another's numbers differ."


class Slide(NamedTuple):
    """What is on it, as HTML; ``kind`` is title, section, question, answer, picture or summary."""

    kind: str
    heading: str
    body: str


def write(notebook: Path, folder: Path) -> Path:
    """Write the deck of a chapter's notebook into ``folder`` and return its path. Raises `DpbookError`."""
    try:
        read = json.loads(notebook.read_text(encoding="utf-8"))
        made = list(slides(read["cells"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DpbookError(f"{notebook} cannot be read as a notebook ({error!r})") from None
    if not made:
        raise DpbookError(f"{notebook} has no cell from which a slide can be made")
    page = TEMPLATES.get_template("slides.html.jinja").render(title=made[0].heading, slides=made)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{notebook.stem}.html"
    files.write_atomically(path, page.encode())
    return path


def slides(cells: Sequence[Cell]) -> Iterator[Slide]:
    """The beats of a chapter in order. What a reader reads between them is left to who speaks."""
    section = ""
    for place, cell in enumerate(cells):
        if cell["id"] == "ways-on":
            return
        if cell["cell_type"] == "markdown":
            words = _text(cell["source"]).partition("**Further reading**")[0]
            if found := re.match(r"#{1,2} (.+)\n*", words):
                kind = "section" if section else "title"
                section, words = found[1].strip(), words[found.end() :]
                yield from _opening(kind, section, words)
            yield from _questions(section, words, cells[place + 1 :])
        else:
            for image in _images(cell):
                yield Slide("picture", section, image + _caption(cell, cells[place + 1 :]))


def _opening(kind: str, heading: str, words: str) -> Iterator[Slide]:
    if heading == "Summary":
        yield Slide("summary", heading, html(words))
    elif kind == "title":
        yield Slide(kind, heading, "".join(html(sentences(part, 3)) for part in words.split("\n\n")[:2]))
    elif not ANSWER.search(words):  # a question says its section
        first, _, rest = words.partition("\n\n")
        if first.endswith(":"):  # a list or a formula follows
            yield Slide(kind, heading, html(f"{sentences(first, 3)}\n\n{rest.partition(chr(10) * 2)[0]}"))
        elif first:
            yield Slide(kind, heading, html(first if first.startswith(("-", "1.", "|", "$")) else sentences(first, 3)))


def _questions(section: str, words: str, behind: Sequence[Cell]) -> Iterator[Slide]:
    """Each question, and on a slide of its own its answer, the last with what the cells behind it say."""
    begin, found = 0, list(ANSWER.finditer(words))
    for match in found:
        before = words[begin : match.start()].strip()
        context, _, question = before.rpartition(PREDICT if PREDICT in before else "\n\n")
        asked = html(question.strip())
        said = html(context.strip().rpartition("\n\n")[2])
        yield Slide("question", section, f'<div class="context">{said}</div>{asked}')
        run = _run(behind) if match is found[-1] else ""
        yield Slide("answer", section, f'<div class="context">{asked}</div>{html(match[1].strip())}{run}')
        begin = match.end()


def _run(behind: Sequence[Cell]) -> str:
    """What the cells up to the next words print, and what they assert."""
    ran = [cell for cell in takewhile(lambda cell: cell["cell_type"] == "code", behind) if "yours" not in _tags(cell)]
    printed = "".join(_text(out["text"]) for cell in ran for out in cell["outputs"] if out.get("name") == "stdout")
    lines = printed.strip("\n").splitlines()
    shown = [*lines[:MOST_LINES], "…"] if len(lines) > MOST_LINES else lines
    claims = [claim for cell in ran for claim in _asserts(_text(cell["source"]))]
    parts = [f"<pre>{escape(chr(10).join(shown))}</pre>"] if shown else []
    parts += [f'<p class="note">{MEASURED}</p>'] if shown and any("measurement" in _tags(cell) for cell in ran) else []
    parts += [f'<pre class="claim">{escape(chr(10).join(claims))}</pre>'] if claims else []
    return "".join(parts)


def _asserts(source: str) -> list[str]:
    code = "\n".join("pass" if line.startswith(("%", "!")) else line for line in source.splitlines())
    return [
        ast.get_source_segment(code, node) or "" for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert)
    ]


def _images(cell: Cell) -> Iterator[str]:
    """The pictures that a cell shows; of a film the frames that move by themselves."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            alt = output["metadata"].get("image/png", {}).get("alt", "")
            png = "".join(_text(data["image/png"]).split())
            yield f'<img alt="{escape(alt)}" src="data:image/png;base64,{png}">'
        elif found := IMAGE.search(_text(data.get("text/html", ""))):
            yield re.sub(r' (width|style)="[^"]*"', "", found[0])


def _caption(cell: Cell, behind: Sequence[Cell]) -> str:
    """The sentence with which the words behind the picture begin, unless these are about something else."""
    note = f'<p class="note">{MEASURED}</p>' if "measurement" in _tags(cell) else ""
    words = next((_text(other["source"]) for other in behind if other["cell_type"] == "markdown"), "")
    sentence = sentences(words.partition("\n\n")[0], 1)
    if words.startswith(("#", "**", "-", "|", "1.", "$")) or sentence.endswith(":") or len(sentence.split()) < 6:
        return note
    return html(sentence) + note


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _tags(cell: Cell) -> list[str]:
    tags: list[str] = cell["metadata"].get("tags", [])
    return tags
