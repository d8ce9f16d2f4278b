"""Does every chapter and exercise end with the ways on, in order, and does each link of the book lead somewhere?"""

import json
import re
from pathlib import Path
from urllib.parse import unquote

from dpbook.core import checkout
from tests.cases import each
from tests.notebooks.hygiene import text

ROOT = checkout.root()
CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.ipynb"))
BESIDE = sorted((ROOT / "chapters").glob("[0-9][0-9][b-z]_*.ipynb"))
EXERCISES = sorted((ROOT / "exercises").glob("*.ipynb"))
LINK = re.compile(r"\[([^]]*)\]\(([^)\s]+)\)")
ENTRY = re.compile(r"- \*\*(.+?):\*\* .*?\[(.+?)\]\((.+?)\)")


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def ways_on(path):
    """Names of the links in the last cell, with the notebooks that they lead to and the names of these there."""
    last = cells(path)[-1]
    assert last["id"] == "ways-on", path.name
    found = [ENTRY.match(line) for line in text(last["source"]).splitlines() if line.startswith("- ")]
    return [(match[1], (path.parent / match[3]).resolve(), match[2]) for match in found]


def titled(way, path):
    """A way on to a notebook, by the number of its file and the first heading of its chapter."""
    chapter = next(chapter for chapter in CHAPTERS if chapter.name == path.name)
    return way, path, re.match(r"# (\d\d · .+)", text(cells(chapter)[0]["source"]))[1]


@each("number", range(len(CHAPTERS)))
def test_a_chapter_leads_back_to_its_exercises_and_on(number):
    path = CHAPTERS[number]
    expected = [titled("Previous", CHAPTERS[number - 1])] if number else []
    expected += [titled("Exercises", e) for e in EXERCISES if e.name == path.name]
    expected += [titled("Next", CHAPTERS[(number + 1) % len(CHAPTERS)])]  # after the last one, how far one is
    assert ways_on(path) == expected


@each("path", BESIDE)
def test_what_stands_beside_a_chapter_leads_to_it_and_on(path):
    number = next(n for n, chapter in enumerate(CHAPTERS) if chapter.name[:2] == path.name[:2])
    assert ways_on(path) == [titled("Extends", CHAPTERS[number]), titled("Next", CHAPTERS[number + 1])]


@each("path", EXERCISES)
def test_exercises_lead_back_to_their_chapter_and_on_to_the_next(path):
    number = next(n for n, chapter in enumerate(CHAPTERS) if chapter.name == path.name)
    expected = [titled("Previous", CHAPTERS[number])]
    expected += [titled("Next", chapter) for chapter in CHAPTERS[number + 1 : number + 2]]
    assert ways_on(path) == [*expected, titled("How far you are", CHAPTERS[0])]


def broken(path):
    """The relative links of a notebook's prose that lead to no file of the reader's copy."""
    targets = [
        match[2]
        for cell in cells(path)
        if cell["cell_type"] == "markdown"
        for match in LINK.finditer(text(cell["source"]))
        if not re.match(r"[a-z]+:|#", match[2])
    ]
    places = {target: (path.parent / unquote(target.partition("#")[0])).resolve() for target in targets}
    copied = [ROOT / "chapters", ROOT / "exercises"]
    return [t for t, place in places.items() if not place.is_file() or not set(copied) & set(place.parents)]


@each("path", CHAPTERS + BESIDE + EXERCISES)
def test_every_relative_link_leads_to_a_file_of_the_readers_copy(path):
    assert broken(path) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    source = "[a](nowhere.ipynb), [b](../LICENSE), [c](https://example.org) and [d](#here)"
    path = Path(tmp_path / "a.ipynb")
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": source}]}))
    assert broken(path) == ["nowhere.ipynb", "../LICENSE"]
