"""Pages of the book, each from a stored notebook or a document: its HTML and what is interactive without a kernel."""

import ast
import base64
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dpbook.app.site.markdown import HREF, Converter, Section, coloured
from dpbook.figures import EXPLORER_MIME, PLAYER_MIME

LONGEST_SETUP = 10
"""Most lines of set-up that a page shows; longer set-up is folded, so that a chapter begins with its picture."""
PREDICT = "**Predict.**"
IMAGE = re.compile(
    r'(?:<picture>.*?)?<img alt="([^"]*)" width="([\d.]+)"[^>]*?src="data:image/(png|svg\+xml);base64,([^"]+)"[^>]*>'
    r"(?:</picture>)?"
)
SCROLLED = re.compile(r'^<div style="overflow-x:auto">|(?<=>)</div>$')
"""What lets a stored picture scroll in a notebook; on a page its figure does."""
STILL = re.compile(r'srcset="data:image/svg\+xml;base64,([^"]+)"')
VIEW_BOX = re.compile(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"')
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?")
STRING = re.compile(r'"([^"]*)"')
SENTENCE = 5
"""Least number of words of a string that may be a sentence."""
TASK = re.compile(r"## (\d\d[b-z]?)\.(\d)")
ESCAPES = re.compile(r"\x1b\[[\d;]*m")
Cell = dict[str, Any]


class Files(Protocol):
    """The site as a page sees it: a store of pictures, and the addresses of other pages and films."""

    def picture(self, data: bytes, ending: str) -> str:
        """Store a picture, and return its address from the root of the site."""

    def film(self, name: str) -> str | None:
        """Return the address of an explorer's film from the root of the site, or None if there is none."""

    def link(self, address: str, source: Path, place: str) -> str:
        """Return where a link in ``source`` leads on the page at ``place``."""

    def terms(self, source: Path, place: str) -> Callable[[str], str]:
        """Return a function that adds links to a text: to chapters and tasks, and the first uses of terms."""


@dataclass
class Page:
    """A page at ``place``, its address from the root of the site; ``root`` leads from it to the root."""

    place: str
    title: str = ""
    body: str = ""
    sections: list[Section] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def root(self) -> str:
        """Relative address of the root of the site, "" or "../"."""
        return "../" * self.place.count("/")


def document_page(source: Path, place: str, files: Files) -> Page:
    """Return the page of a Markdown document."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n*", "", source.read_text(encoding="utf-8"))
    return text_page(text, source, place, files)


def text_page(text: str, source: Path, place: str, files: Files) -> Page:
    """Return the page of a text in Markdown, whose links lead on from ``source``."""
    converter = Converter(lambda address: files.link(address, source, place), files.terms(source, place))
    body = converter.html(text)
    converter.add_text(body)
    return Page(place, converter.title, body, converter.sections)


def notebook_page(source: Path, place: str, files: Files) -> Page:
    """Return the page of a stored notebook. Nothing is executed."""
    return _Notebook(source, Page(place), files).page()


class _Notebook:
    def __init__(self, source: Path, page: Page, files: Files) -> None:
        self._source, self._page, self._files = source, page, files
        self._converter = Converter(self._link, files.terms(source, page.place))

    def _link(self, address: str) -> str:
        return self._files.link(address, self._source, self._page.place)

    def page(self) -> Page:
        """Read the notebook, and return its page."""
        cells = json.loads(self._source.read_text(encoding="utf-8"))["cells"]
        page, converter = self._page, self._converter
        page.body = "".join(self._parts(cells))
        page.title, page.sections = converter.title, converter.sections
        for section in page.sections:  # a cell and a heading may have the same name: it leads to the heading
            page.body = page.body.replace(f'<span id="{section.anchor}"></span>', "")
            page.body = re.sub(rf'(<div class="cell[^"]*") id="{re.escape(section.anchor)}">', r"\1>", page.body)
        return page

    def _parts(self, cells: list[Cell]) -> Iterator[str]:
        """Yield the cells as HTML; code below a question is inside the question's section."""
        secret: set[str] | None = None
        before = ""
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                if secret is not None:
                    yield "</div></section>"
                secret = None
                markup = f'<span id="{cell["id"]}"></span>{self._converter.html(source)}'
                if task := TASK.match(source):
                    markup = f'<span id="task-{task[1]}-{task[2]}"></span>{markup}'
                if PREDICT in source:
                    yield self._question(markup, cell)
                    asked, _, answer = markup.partition("<details>")
                    secret = numbers(answer) - numbers(before + asked)
                else:
                    yield markup
                self._converter.add_text(markup)
                before = markup
            elif cell["cell_type"] == "code":
                yield self._code(cell, source, secret)
        if secret is not None:
            yield "</div></section>"

    def _question(self, markup: str, cell: Cell) -> str:
        """Return the beginning of a question's section; a guess is compared with the numbers in the cell's metadata."""
        self._page.counts["predictions"] += 1
        lead, mark, rest = markup.partition("<p><strong>Predict.</strong>")
        question, details, answer = (mark + rest).partition("<details>")
        numbers_of_answer = "; ".join(cell["metadata"].get("answer", []))
        key = html.escape(f"{self._page.place}:{cell['id']}")
        return (
            f'{lead}<section class="prediction" data-key="{key}" data-answer="{numbers_of_answer}">{question}'
            f'<div class="guess"></div><div class="answer">{details}{answer}'
        )

    def _code(self, cell: Cell, source: str, secret: set[str] | None) -> str:
        lines, kind = coloured(source, "python").rstrip("\n").split("\n"), "cell"
        if secret is not None:
            hidden = stating_lines(source, secret)
            if all(n in hidden for n, line in enumerate(source.split("\n"), 1) if line.strip()):
                kind = "cell states"  # an empty box would be left of it
            lines = [f'<span class="states">{x}\n</span>' if n in hidden else x + "\n" for n, x in enumerate(lines, 1)]
            code = "".join(lines)
        else:
            code = "\n".join(lines)
        outputs = "".join(map(self._output, cell["outputs"]))
        if "interact" in cell["metadata"].get("tags", []):
            outputs += '<p class="note">This cell has controls that need a kernel: open the notebook to use them.</p>'
        outputs = f'<div class="outputs">{outputs}</div>' if outputs else ""
        shown = f'<pre class="code"><code>{code}</code></pre>'
        if cell["id"] == "setup" and len(lines) > LONGEST_SETUP:
            shown = f"<details><summary>Set-up: {len(lines)} lines of code</summary>{shown}</details>"
        return f'<div class="{kind}" id="{cell["id"]}">{shown}{outputs}</div>'

    def _output(self, output: Mapping[str, Any]) -> str:
        if output["output_type"] == "stream":
            return _printed("".join(output["text"]))
        if output["output_type"] == "error":
            return _printed(ESCAPES.sub("", "\n".join(output["traceback"])), "out error")
        data: dict[str, Any] = {
            kind: "".join(value) if isinstance(value, list) else value for kind, value in output["data"].items()
        }
        if player := data.get(PLAYER_MIME):
            return self._player(player, data["text/html"])
        if "text/html" not in data:
            return _printed(data.get("text/plain", ""))
        markup = HREF.sub(lambda found: f'href="{self._link(html.unescape(found[1]))}"', data["text/html"])
        markup = IMAGE.sub(self._stored_picture, SCROLLED.sub("", markup))
        if explorer := data.get(EXPLORER_MIME):
            return self._explorer(explorer, markup)
        return f'<div class="figure">{markup}</div>'

    def _stored_picture(self, match: re.Match[str]) -> str:
        alt, width, kind, code = match.groups()
        return self._picture(alt, float(width), kind.removesuffix("+xml"), base64.b64decode(code))

    def _picture(self, alt: str, width: float, ending: str, data: bytes) -> str:
        address = self._page.root + self._files.picture(data, ending)
        box = VIEW_BOX.search(data)
        height = f' height="{width * float(box[2]) / float(box[1]):.0f}"' if box else ""
        self._page.counts["pictures"] += 1
        return f'<img alt="{alt}" width="{width:g}"{height} loading="lazy" src="{address}">'

    def _player(self, player: Mapping[str, Any], markup: str) -> str:
        """Return the frames of a player once, as SVG in the page, and the last one as a picture without scripts."""
        self._page.counts["players"] += 1
        still, image = STILL.search(markup), IMAGE.search(markup)
        assert still is not None
        assert image is not None
        picture = self._picture(image[1], float(image[2]), "svg", base64.b64decode(still[1]))
        settings = f'data-step="{html.escape(player["step"])}" data-pace="{player["pace"]}" data-at="{player["at"]}"'
        svg = player["svg"].replace("</script", r"<\/script")
        return (
            f'<div class="player" {settings}><script type="image/svg+xml">{svg}</script>'
            f'<div class="live"></div><div class="still figure">{picture}</div></div>'
        )

    def _explorer(self, explorer: Mapping[str, Any], markup: str) -> str:
        self._page.counts["explorers"] += 1
        settings = html.escape(json.dumps(explorer, ensure_ascii=False))
        film = self._files.film(explorer["name"])
        address = f' data-film="{self._page.root}{film}"' if film else ""
        still = f'<div class="still figure">{markup}</div>'
        return f'<div class="explorer" data-explorer="{settings}"{address}>{still}</div>'


def _printed(text: str, kind: str = "out") -> str:
    return f'<pre class="{kind}">{html.escape(text)}</pre>\n'


def numbers(text: str) -> set[str]:
    """Return the informative numbers of a text: those with two or more digits, or with a decimal point."""
    return {one for one in NUMBER.findall(html.unescape(re.sub(r"<[^>]+>", " ", text))) if len(one) > 1}


def stating_lines(source: str, secret: set[str]) -> set[int]:
    """Return the lines of code, counted from 1, that state an answer.

    They are assertions, lines with a number of the answer, and those with a string that is a sentence: the title of a
    figure says what it shows.
    """
    plain = {one.replace(",", "") for one in secret}
    lines = {
        number
        for number, line in enumerate(source.split("\n"), 1)
        if plain & {one.replace(",", "") for one in numbers(html.escape(line.replace("_", "")))}
        or any(len(words.split()) >= SENTENCE for words in STRING.findall(line))
    }
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    except SyntaxError:
        return lines
    return lines | {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
