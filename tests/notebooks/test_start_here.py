"""Does chapter 00 send its reader to chapters that there are, and do the first chapters keep to its notation?"""

import json
import re

from dpbook.core import checkout
from tests.cases import each
from tests.classroom.teaching import units
from tests.notebooks.hygiene import tags, text

FOLDER = checkout.root() / "chapters"
CHAPTERS = {chapter.label: chapter.path for chapter in checkout.chapters(FOLDER)}


def sources(number):
    notebook = json.loads(CHAPTERS[number].read_text(encoding="utf-8"))
    return {cell["id"]: text(cell["source"]) for cell in notebook["cells"]}


def rows(cell):
    """The cells of a Markdown table, without its head."""
    table = [line for line in sources("00")[cell].splitlines() if line.startswith("|")]
    return [[entry.strip() for entry in line.strip("|").split("|")] for line in table[2:]]


@each("plan", [1, 2])
def test_a_course_goes_once_through_the_chapters_that_there_are_or_says_that_it_leaves_them_out(plan):
    """The weeks keep the order of the chapters."""
    *weeks, left_out, _ = [re.findall(r"\d\d[b-z]?", row[plan]) for row in rows("course")]
    taken = [label for week in weeks for label in week]
    assert sorted(taken + left_out) == list(CHAPTERS)
    assert taken == sorted(taken)


@each("plan", [1, 2])
def test_a_course_fits_its_weeks_and_says_how_many_hours_it_takes(plan):
    minutes = {unit.label: unit.minutes + unit.practice for unit in units()}
    *weeks, _, hours = [row[plan] for row in rows("course")]
    taken = [sum(minutes[label] for label in re.findall(r"\d\d[b-z]?", week)) for week in weeks]
    assert max(taken) <= 8 * 60
    assert hours == f"{sum(taken) / 60:.0f}"


def test_the_parts_hold_every_chapter_and_say_what_to_refresh_for_each():
    parts = rows("parts")
    ends = [re.findall(r"\b\d\d\b", row[1]) for row in parts]
    chapters = [f"{number:02}" for pair in ends for number in range(int(pair[0]), int(pair[-1]) + 1)]
    optional = [label for row in parts for label in re.findall(r"\d\d[b-z]", row[1])]
    refreshed = [label for row in parts for label in re.findall(r"\b(\d\d[b-z]?):", row[3])]
    assert sorted([*chapters, *optional]) == refreshed == [label for label in CHAPTERS if label != "00"]


def test_what_stands_beside_a_chapter_is_named_under_the_parts():
    beside = [chapter.path.name for chapter in checkout.chapters(FOLDER) if chapter.is_optional]
    assert beside
    assert [name for name in beside if f"]({name})" not in sources("00")["parts"]] == []


def test_what_the_makers_machine_is_does_not_count_as_the_readers():
    """``yours``: the output is the reader's own, and the copy in workbook/ begins without it."""
    cells = json.loads(CHAPTERS["00"].read_text(encoding="utf-8"))["cells"]
    asks = [cell for cell in cells if cell["cell_type"] == "code" and text(cell["source"]).startswith("diagnose(")]
    assert [tags(cell) for cell in asks] == [["nbval-ignore-output", "yours"]]


def test_no_sign_stands_for_two_things():
    signs = [sign.strip() for row in rows("notation") for sign in row[0].split(",")]
    assert len(signs) == len(set(signs)) > 20


@each("number", ["00", "01", "02", "03"])
def test_the_world_size_is_n(number):
    assert [cell for cell, source in sources(number).items() if re.search(r"\bK\b", source)] == []
