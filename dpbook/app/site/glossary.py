"""Glossary and bibliography of the book, read from its chapters: terms in bold, and the lists of further reading."""

import html
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dpbook.app.site.markdown import Converter, text_of
from dpbook.core import DATA

BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
TERM = re.compile(r"[A-Za-zα-ω][\w –/α-ω-]*")
MOST_WORDS = 4
_WORDS = tomllib.loads((DATA / "site/glossary.toml").read_text(encoding="utf-8"))
EMPHASIS, EVERYDAY = frozenset(_WORDS["emphasis"]), frozenset(_WORDS["everyday"])
DEFINITIONS: dict[str, str] = _WORDS["definitions"]
"""Definitions by term, in the singular."""
READING = "**Further reading**"


@dataclass(frozen=True)
class Term:
    """A term, the sentence that defines it, and where the chapter introduces it: the notebook and a cell's id."""

    term: str
    sentence: str
    chapter: Path
    cell: str

    @property
    def anchor(self) -> str:
        """Anchor of the term in the glossary."""
        return re.sub(r"[^\w]+", "-", self.term.lower()).strip("-")

    @cached_property
    def text(self) -> str:
        """The sentence without markup."""
        return text_of(re.sub(r"<annotation.*?</annotation>", "", Converter(str).html(self.sentence)))


@dataclass
class Reference:
    """A work of the lists of further reading, in Markdown, with the chapters that name it."""

    text: str
    chapters: list[Path] = field(default_factory=list)


def terms(chapters: Sequence[Path]) -> list[Term]:
    """Return the terms that the chapters define, each where it is first in bold, in alphabetical order."""
    found: dict[str, Term] = {}
    for chapter in chapters:
        for cell, source in _texts(chapter):
            for paragraph in _paragraphs(source):
                for match in BOLD.finditer(paragraph):
                    term = match[1].strip()
                    key = _singular(term.lower())
                    if key not in found and _defines(term, paragraph, match):
                        name = term[0].lower() + term[1:] if term[1:].islower() else term
                        sentence = DEFINITIONS.get(key) or _sentence(paragraph, match.start())
                        found[key] = Term(name, sentence, chapter, cell)
    return sorted(found.values(), key=lambda one: one.term.lower())


def references(chapters: Sequence[Path]) -> list[Reference]:
    """Return the works that chapters recommend, in the order of their authors."""
    found: dict[str, Reference] = {}
    for chapter in chapters:
        for _, source in _texts(chapter):
            if READING in source:
                for line in re.findall(r"^[-*] (.+)$", source.partition(READING)[2], re.MULTILINE):
                    work = re.sub(r"(\((?:[^()]*, )?\d{4}\)|\d{4}\))[:;,.].*$", r"\1", line).rstrip(".") + "."
                    title = re.search(r'"([^"]+)"', work)
                    reference = found.setdefault((title[1] if title else work).lower(), Reference(work))
                    if chapter not in reference.chapters:
                        reference.chapters.append(chapter)
    return sorted(found.values(), key=lambda one: re.sub(r"^(\w\. )+", "", one.text).lower())


def link_first_uses(terms_: Sequence[Term], page: Path, place: Callable[[Term], str]) -> Callable[[str], str]:
    """Return a function that links the first use of each term on a page, except terms that the page itself defines."""
    elsewhere = {
        _singular(one.term.lower()): one for one in terms_ if one.chapter != page and one.term.lower() not in EVERYDAY
    }
    if not elsewhere:
        return lambda text: text
    words = "|".join(re.escape(word) for word in sorted(elsewhere, key=len, reverse=True))
    pattern = re.compile(rf"\b({words})(s?)\b", re.IGNORECASE)
    used: set[str] = set()

    def link(match: re.Match[str]) -> str:
        term = elsewhere.get(match[1].lower())
        acronym = term is not None and not term.term.islower()
        if term is None or term.term in used or (acronym and match[1] != term.term):
            return match[0]
        used.add(term.term)
        return f'<a class="term" href="{place(term)}" title="{html.escape(term.text)}">{match[0]}</a>'

    return lambda text: pattern.sub(link, text)


def _texts(chapter: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the source of each Markdown cell."""
    for cell in json.loads(chapter.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield cell["id"], "".join(cell["source"])


def _paragraphs(source: str) -> Iterator[str]:
    """Yield paragraphs, list items and last columns of tables; nothing of titles, answers and further reading."""
    if source.startswith("# "):
        source = re.sub(r"\A# .*\n+\*\*.*\*\*\n", "", source)
    source = re.sub(r"<details>.*?</details>", "", source.partition(READING)[0], flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", source):
        if block.startswith("|"):
            yield from (line.strip("|").rpartition("|")[2].strip() for line in block.splitlines())
        elif not block.startswith("#"):
            yield from re.split(r"\n(?=[-*] |\d+\. )", re.sub(r"\n(?![-*] |\d+\. )", " ", block))


def _defines(term: str, paragraph: str, match: re.Match[str]) -> bool:
    if len(term.split()) > MOST_WORDS or not TERM.fullmatch(term) or term.lower() in EMPHASIS:
        return False
    begins_item = paragraph[: match.start()].strip() in ("", "-", "*")
    return not (begins_item and paragraph[match.end() : match.end() + 1] in (":", ""))


def _sentence(paragraph: str, place: int) -> str:
    """Return the sentence of a paragraph at a place, without its bold."""
    begins = [0, *(found.end() for found in re.finditer(r"(?<=[.!?:])\s+(?=[A-Z`*$(\"])", paragraph)), len(paragraph)]
    begin = max(start for start in begins if start <= place)
    end = min(start for start in begins if start > place)
    sentence = re.sub(r"^([-*]|\d+\.) ", "", paragraph[begin:end].strip())
    sentence = sentence.replace("**", "").rstrip(":,;")
    return sentence[:1].upper() + sentence[1:] + ("" if sentence[-1:] in ".!?" else ".")


def _singular(word: str) -> str:
    if word.endswith("ches"):
        return word.removesuffix("es")
    return word.removesuffix("s") if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
