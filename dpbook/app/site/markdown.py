"""Markdown of notebooks and documents as HTML: formulas as MathML, code in colour, headings with anchors."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mistune
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from dpbook.core import mathml

FORMATTER = HtmlFormatter(nowrap=True)
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$(?!\s)([^$\n]+?)(?<![\\\s])\$(?!\d)", re.DOTALL)
ANSWER = re.compile(r"(<details>)\s*(<summary>.*?</summary>)(.*?)(</details>)", re.DOTALL)
HEADING, HREF = re.compile(r"<h([1-6])>(.*?)</h\1>", re.DOTALL), re.compile(r'href="([^"]+)"')
KEPT = re.compile(r"FORMULA(\d+)ALUMROF")
"""Placeholder of a formula while Markdown is parsed."""
TAG = re.compile(r"(<[^>]+>)")
APART = frozenset({"a", "code", "pre", "h1", "h2", "h3", "h4", "summary", "math", "annotation"})
"""Elements whose text gets no links."""


@dataclass
class Section:
    """A heading and the text up to the next heading, for the contents list and the search index."""

    level: int
    anchor: str
    heading: str
    text: str = ""


def coloured(code: str, language: str) -> str:
    """Return lines of code as HTML, by Pygments; a language that it does not know has no colours."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    return str(highlight(code, lexer, FORMATTER))


def text_of(markup: str) -> str:
    """Return the text of HTML, in one line."""
    return " ".join(html.unescape(TAG.sub("", markup)).split())


class _Renderer(mistune.HTMLRenderer):
    def block_code(self, code: str, info: str | None = None) -> str:
        return f'<pre class="code"><code>{coloured(code, (info or "text").split()[0])}</code></pre>\n'


_render: Any = mistune.create_markdown(
    renderer=_Renderer(escape=False), plugins=["table", "strikethrough", "footnotes"]
)


@dataclass
class Converter:
    """Converts the Markdown of one page, and collects its `sections` in order.

    ``link`` returns where a link of the source leads on the page, and ``terms`` a text with links that it did not have.
    """

    link: Callable[[str], str]
    terms: Callable[[str], str] = lambda text: text
    title: str = ""
    sections: list[Section] = field(default_factory=list)

    def html(self, source: str) -> str:
        """Return Markdown as HTML."""
        formulas: list[str] = []

        def keep(match: re.Match[str]) -> str:
            block, inline = match.groups()
            formulas.append(mathml(block or inline, block=bool(block)))
            return f"FORMULA{len(formulas) - 1}ALUMROF"

        pieces = CODE.split(source)
        pieces[::2] = [MATH.sub(keep, piece) for piece in pieces[::2]]
        # An answer is one block of HTML, in which Markdown has no meaning unless blank lines surround it.
        markup: str = _render(ANSWER.sub(r"\1\2\n\n\3\n\n\4", "".join(pieces)))

        def restored(text: str) -> str:
            return KEPT.sub(lambda found: formulas[int(found[1])], text)

        markup = HEADING.sub(lambda found: self._heading(int(found[1]), restored(found[2])), markup)
        markup = HREF.sub(lambda found: f'href="{self.link(html.unescape(found[1]))}"', markup)
        return restored(self._linked(markup))

    def _heading(self, level: int, markup: str) -> str:
        heading = text_of(re.sub(r"<annotation.*?</annotation>", "", markup))
        if level == 1 and not self.title:
            self.title = heading
        elif level == 1:
            level = 2
        anchor = base = re.sub(r"[^\w\- ]+", "", heading.lower()).strip().replace(" ", "-") or "section"
        others, number = {section.anchor for section in self.sections}, 2
        while anchor in others:
            anchor, number = f"{base}-{number}", number + 1
        self.sections.append(Section(level, anchor, heading))
        link = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>'
        return f'<h{level} id="{anchor}">{markup} {link}</h{level}>'

    def _linked(self, markup: str) -> str:
        pieces, depth = TAG.split(markup), 0
        for place, piece in enumerate(pieces):
            if place % 2:
                tag = re.match(r"</?(\w+)", piece)
                if tag and tag[1] in APART:
                    depth += -1 if piece[1] == "/" else 1
            elif not depth:
                pieces[place] = self.terms(piece)
        return "".join(pieces)

    def add_text(self, markup: str) -> None:
        """Add the text of ``markup``, whose headings are the last ones of the page, to its sections."""
        markup = re.sub(r"<details>.*?</details>|<annotation.*?</annotation>", " ", markup, flags=re.DOTALL)
        before, *rest = re.split(r'<h\d id="([^"]+)">.*?</h\d>', markup, flags=re.DOTALL)
        anchors = dict(zip(rest[::2], rest[1::2], strict=True))
        earlier = [section for section in self.sections if section.anchor not in anchors]
        if earlier:
            earlier[-1].text += " " + text_of(before.replace("<", " <"))
        for section in self.sections:
            if section.anchor in anchors:
                section.text += " " + text_of(anchors[section.anchor].replace("<", " <"))
