"""The book as a folder of static pages, built from the stored notebooks. Nothing is executed.

The pages need no server and ask no other host for anything. ``paper.html`` holds all chapters on one page, to print.
"""

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from dpbook import __version__
from dpbook.app.site import glossary
from dpbook.app.site.films import FOLDER as FILMS
from dpbook.app.site.glossary import Term
from dpbook.app.site.library import library_pages
from dpbook.app.site.markdown import Section
from dpbook.app.site.pages import Page, document_page, notebook_page, text_page
from dpbook.core import DATA, DpbookError, render_page

STATIC = DATA / "jupyter/labextensions/dpbook/static"
ASSETS = DATA / "site"
MARK = ".dpbook-pages"
"""Marker file in a folder of pages: the builder writes only to a folder that has it, or to an empty one."""
ELSEWHERE = re.compile(r"[a-z]+:|#")
CROSS = re.compile(r"\b([Cc]hapter|[Ee]xercise) (\d\d[b-z]?)(?:\.(\d))?\b")
NOTEBOOKS = ("chapters", "exercises")
YOUR_RUN = ("symptoms", "audit", "launchers", "reports", "forecast", "server", "nccl_log", "training")
"""Documents on the reader's training run, in the order of the contents."""
FILM = re.compile(r'dpbook-film.*?src="data:image/svg\+xml;base64,([^"]+)"', re.DOTALL)


@dataclass(frozen=True)
class BuiltSite:
    """The result of a build: the folder, the pages in the order of the book, links of the sources that lead nowhere."""

    folder: Path
    pages: list[Page]
    dead_links: list[str]

    @property
    def counts(self) -> Counter[str]:
        """Return how many predictions, players, explorers and pictures the pages have."""
        return sum((page.counts for page in self.pages), Counter())

    def __str__(self) -> str:
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        counts = ", ".join(f"{number} {name}" for name, number in sorted(self.counts.items()))
        return f"{len(self.pages)} pages, {counts}, {size / 1e6:.1f} MB"


def build(root: Path, folder: Path) -> BuiltSite:
    """Write the pages of the book at ``root`` (a checkout, or the book in a wheel) into ``folder``.

    Raises `DpbookError` for a folder that contains something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / MARK).exists():
            allowed = "pass --to an empty folder, or one with pages of the book"
            raise DpbookError(f"{folder} contains other files: {allowed}")
        (folder / MARK).touch()
    except OSError as error:
        raise DpbookError(f"cannot write pages to {folder}: {error.strerror}") from error
    return _Site(root, folder).build()


class _Site:
    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root.resolve(), folder
        self.chapters, self.exercises = (sorted((root / name).resolve().glob("*.ipynb")) for name in NOTEBOOKS)
        texts = (self.root / "README.md", *sorted((self.root / "docs").rglob("*.md")), self.root / "CONTRIBUTING.md")
        self.documents = [path for path in texts if path.is_file()]
        self.places = {path: f"{path.parent.name}/{path.stem}.html" for path in (*self.chapters, *self.exercises)}
        for path in self.documents:
            inside = path.relative_to(self.root)
            self.places[path] = inside.with_suffix(".html").as_posix().lower().replace("readme", "about")
        self.labels = {
            (path.parent.name.removesuffix("s"), path.name.partition("_")[0]): place
            for path, place in self.places.items()
            if path.suffix == ".ipynb"
        }
        self.glossary = glossary.terms(self.chapters)
        self.dead_links: list[str] = []
        self.pictures: set[str] = set()

    # What pages ask for.

    def picture(self, data: bytes, ending: str) -> str:
        address = f"pictures/{hashlib.sha256(data).hexdigest()[:16]}.{ending}"
        self.pictures.add(address)
        path = self.folder / address
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        return address

    def film(self, name: str) -> str | None:
        return f"films/{name}.js" if (FILMS / f"{name}.json.gz").exists() else None

    def link(self, address: str, source: Path, place: str) -> str:
        if ELSEWHERE.match(address):
            return html.escape(address)
        path, _, fragment = address.partition("#")
        target = (source.parent / unquote(path)).resolve()
        up = "../" * place.count("/")
        anchor = f"#{fragment}" if fragment else ""
        if target in self.places:
            return f"{up}{self.places[target]}{anchor}"
        if target.is_file() and self.root in target.parents:
            copied = self.folder / "files" / target.name
            copied.parent.mkdir(exist_ok=True)
            copied.write_bytes(target.read_bytes())
            return f"{up}files/{quote(target.name)}"
        if not target.is_dir():
            self.dead_links.append(f"{place}: {address}")
        return "#"

    def terms(self, source: Path, place: str) -> Callable[[str], str]:
        up = "../" * place.count("/")
        first_uses = glossary.link_first_uses(
            self.glossary if source in self.chapters else (), source, lambda term: f"{up}glossary.html#{term.anchor}"
        )

        def cross(match: re.Match[str]) -> str:
            kind, label, task = match[1].lower(), match[2], match[3]
            target = self.labels.get((kind, label))
            if target is None or target == place:
                return match[0]
            return f'<a href="{up}{target}{f"#task-{label}-{task}" if task else ""}">{match[0]}</a>'

        def add(text: str) -> str:
            # A quotation has no links, so titles of works have none.
            pieces = re.split(r"(<a .*?</a>|&quot;.*?&quot;)", CROSS.sub(cross, text), flags=re.DOTALL)
            pieces[::2] = map(first_uses, pieces[::2])
            return "".join(pieces)

        return add

    # The pages.

    def build(self) -> BuiltSite:
        notebooks = {path: notebook_page(path, self.places[path], self) for path in (*self.chapters, *self.exercises)}
        documents = {path: document_page(path, self.places[path], self) for path in self.documents}
        for path, title in {"README.md": "Install and use", "docs/teaching/README.md": "Teaching"}.items():
            if page := documents.get(self.root / path):
                page.title = title
        chapters, exercises = [notebooks[path] for path in self.chapters], [notebooks[path] for path in self.exercises]
        lists = [self._glossary_page(), self._references_page()]
        groups = {"Chapters": chapters, "Exercises": exercises, **_grouped(documents)}
        groups["Reference"] = [*lists, *groups["Reference"]]
        groups["Library"] = [
            text_page(text, self.root / "chapters" / room, f"library/{room}.html", self)
            for room, text in library_pages()
        ]
        groups = {name: group for name, group in groups.items() if group}
        order = [page for group in groups.values() for page in group]
        for group in groups.values():
            for index, page in enumerate(group):
                before, after = group[index - 1] if index else None, next(iter(group[index + 1 :]), None)
                self._write(page, groups=groups, before=before, after=after)
        home = Page("index.html", "dpbook: a runnable book on data-parallel training")
        numbers = sum((page.counts for page in order), Counter())
        home.body = render_page(
            "site/home.html", ring=self._ring(), counts=numbers, chapters=chapters,
            exercises=exercises, n_chapters=len(chapters),
            about=self.places.get(self.root / "README.md", ""),
            places={path.stem: place for path, place in self.places.items() if path not in self.exercises},
        )  # fmt: skip
        self._write(home, groups=groups, before=None, after=chapters[0] if chapters else None)
        printed = [*chapters, *lists]
        paper = Page("paper.html", "dpbook", "".join(_on_paper(page, printed) for page in printed))
        names = [(Path(page.place).stem, page.title) for page in printed]
        self._write(paper, groups={}, before=None, after=None, chapters=names)
        self._write_assets([home, *order])
        for picture in self.folder.glob(f"pictures/{'[0-9a-f]' * 16}.*"):
            if picture.is_file() and f"pictures/{picture.name}" not in self.pictures:
                picture.unlink()  # of an earlier build
        return BuiltSite(self.folder, [home, *order], self.dead_links)

    def _write(self, page: Page, **values: object) -> None:
        path = self.folder / page.place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page("site/page.html", page=page, version=__version__, **values), encoding="utf-8")

    def _glossary_page(self) -> Page:
        text = (
            "# Glossary\n\nTerms, each with the chapter that introduces it. Letters and "
            f"signs are in [the table of notation]({self.chapters[0].name}#notation).\n"
        )
        page = text_page(text, self.chapters[0], "glossary.html", self)
        page.body += f"<dl>{''.join(map(self._entry, self.glossary))}</dl>"
        page.sections += [Section(3, one.anchor, one.term, one.text) for one in self.glossary]
        return page

    def _entry(self, term: Term) -> str:
        sentence = text_page(term.sentence, term.chapter, "glossary.html", self).body
        sentence = re.sub(r"^<p>|</p>\s*$", "", sentence)
        address = f"{self.places[term.chapter]}#{term.cell}"
        label = term.chapter.name.partition("_")[0]
        return (
            f'<dt id="{term.anchor}">{html.escape(term.term)}</dt><dd>{sentence} '
            f'<a class="where" href="{address}">chapter {label}</a></dd>'
        )

    def _references_page(self) -> Page:
        text = "# References\n\nThe works that chapters recommend for further reading.\n\n"
        for work in glossary.references(self.chapters):
            links = (f"[{path.name.partition('_')[0]}]({path.name})" for path in work.chapters)
            text += f"- {work.text} ({', '.join(links)})\n"
        return text_page(text, self.root / "chapters" / "any", "references.html", self)

    def _ring(self) -> str:
        """Return the address of the moving picture of a ring, "" if there is none."""
        for path in self.chapters:
            if path.name.startswith("05_"):
                for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
                    for output in cell.get("outputs", []):
                        markup = "".join(output.get("data", {}).get("text/html", ""))
                        if found := FILM.search(markup):
                            return self.picture(base64.b64decode(found[1]), "svg")
        return ""

    def _write_assets(self, pages: Sequence[Page]) -> None:
        index = [
            [page.place, page.title, section.anchor, section.heading, " ".join(section.text.split())]
            for page in pages
            for section in page.sections
            if section.heading != "Ways on"
        ]
        script = f"window.dpbookSearch={json.dumps(index, ensure_ascii=False, separators=(',', ':'))}\n"
        (self.folder / "search.js").write_text(script, encoding="utf-8")
        (self.folder / "book.js").write_text(_script(), encoding="utf-8")
        for name in ("book.css", "theme.js"):
            (self.folder / name).write_bytes((ASSETS / name).read_bytes())
        (self.folder / "films").mkdir(exist_ok=True)
        for path in FILMS.glob("*.json.gz"):
            name = path.name.partition(".")[0]
            code = base64.b64encode(path.read_bytes()).decode()
            (self.folder / "films" / f"{name}.js").write_text(f'dpbookFilm("{name}","{code}")\n', encoding="utf-8")


def _grouped(documents: dict[Path, Page]) -> dict[str, list[Page]]:
    """Return the pages of documents by group of the contents."""
    groups: dict[str, list[Page]] = {"Your training run": [], "Teaching": [], "Reference": []}
    ranks = {name: rank for rank, name in enumerate(YOUR_RUN)}
    order = sorted(documents, key=lambda path: (ranks.get(path.stem, len(ranks)), path.stem == "grading"))
    for path in order:
        teaching = path.parent.name == "teaching" or path.stem == "grading"
        name = "Your training run" if path.stem in YOUR_RUN else "Teaching" if teaching else "Reference"
        groups[name].append(documents[path])
    return groups


def _script() -> str:
    """Return one classic script, because a page that is opened from a file cannot load modules."""
    parts = []
    for name in ("player", "film", "explorer"):
        source = re.sub(r"^import .*\n", "", (STATIC / f"{name}.js").read_text(encoding="utf-8"), flags=re.MULTILINE)
        exports = re.findall(r"^export (?:async )?function (\w+)", source, re.MULTILINE)
        source = re.sub(r"^export ", "", source, flags=re.MULTILINE)
        parts.append(f"const {name} = (() => {{\n{source}\nreturn {{{', '.join(exports)}}};\n}})();\n")
        if name == "player":
            parts.append("const {made} = player;\n")
    own = (ASSETS / "book.js").read_text(encoding="utf-8")
    return f"(() => {{\n'use strict';\n{''.join(parts)}{own}}})();\n"


def _on_paper(page: Page, printed: Sequence[Page]) -> str:
    """Return a page as a part of the paper: addresses are unique, answers open, pictures stand still.

    Links to pages that are not printed are removed: in a PDF they would name a file of the machine that printed it.
    """
    names = {one.place: Path(one.place).stem for one in printed}

    def link(match: re.Match[str]) -> str:
        address, _, anchor = html.unescape(match[1]).partition("#")
        if re.match(r"[a-z]+:", address):
            return match[0]
        name = names.get(address.removeprefix(page.root) if address else page.place)
        return f' href="#{name}{f"--{anchor}" if anchor else ""}"' if name else ""

    body = re.sub(r'<script type="image/svg\+xml">.*?</script>', "", page.body, flags=re.DOTALL)
    body = re.sub(r' id="([^"]+)"', rf' id="{names[page.place]}--\1"', body)
    body = re.sub(r' href="([^"]+)"', link, body)
    body = body.replace('"../', '"').replace(' loading="lazy"', "").replace("<details>", "<details open>")
    return f'<article class="chapter" id="{names[page.place]}">{body}</article>'
