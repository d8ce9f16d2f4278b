"""Are the stored films what the explorers draw, at every position, and are all explorers filmed?"""

import gzip
import json
import random

import pytest

from dpbook.app.site import films
from dpbook.core import DpbookError, checkout
from dpbook.figures import Explorer, Knob, Picture

CHAPTERS = sorted((checkout.root() / "chapters").glob("*.ipynb"))
EXPLORING = [path for path in CHAPTERS if films.EXPLORER_MIME in path.read_text(encoding="utf-8")]


def stored(explorer):
    """The film of an explorer as `films.film` made it."""
    return json.loads(gzip.decompress((films.FOLDER / f"{films.name_of(explorer)}.json.gz").read_bytes()))


def unpacked(film):
    """The SVG, or the error, at each position: by a reader that was written for this test."""
    shown, before = [], []
    for frame in film["frames"]:
        if isinstance(frame, str):
            shown.append(frame)
            continue
        if frame[0] == -1:
            before = list(before)
            for place, number in zip(frame[1::2], frame[2::2], strict=True):
                before[place] = number
        else:
            before = frame
        shown.append("".join(film["elements"][number] for number in before))
    return shown


def drawn(explorer, choices):
    try:
        return explorer.at(choices).svg
    except DpbookError as error:
        return str(error)


def picture(a, b):
    if (a, b) == (2, 1):
        raise DpbookError("no such machine")
    body = tuple(f'<rect x="{n}" y="{a * n}"/>' for n in range(6)) + (f"<text>{b}</text>",)
    return Picture(640, 40, body, f"a {a}, b {b}")


def test_a_film_has_every_position_and_each_error():
    explorer = Explorer(
        picture, [Knob("a", "a", {"one": 1, "two": 2, "three": 3}), Knob("b", "b", {"no": 0, "yes": 1})]
    )
    film = films.film(explorer)
    assert unpacked(film) == [drawn(explorer, choices) for choices in films.positions(explorer)]
    assert film["frames"][3] == "no such machine"
    assert film["fixed"] == {}


def test_knobs_that_are_not_filmed_stay_where_they_begin():
    explorer = Explorer(
        picture, [Knob("a", "a", {"one": 1, "two": 2}, "two"), Knob("b", "b", {"no": 0, "yes": 1})], ["b"]
    )
    film = films.film(explorer)
    assert film["fixed"] == {"a": "two"}
    assert len(film["frames"]) == 2


def test_no_film_is_there_that_no_chapter_shows():
    named = {films.name_of(one) for path in EXPLORING for one in films.explorers(path).values()}
    assert {path.name.partition(".")[0] for path in films.FOLDER.glob("*.json.gz")} == named


@pytest.mark.parametrize("path", EXPLORING, ids=lambda path: path.stem[:2])
def test_stored_films_are_what_the_code_draws_at_positions_by_chance(path):
    for explorer in films.explorers(path).values():
        shown = unpacked(stored(explorer))
        positions = list(films.positions(explorer))
        assert len(shown) == len(positions)
        for number in random.sample(range(len(shown)), min(20, len(shown))):
            assert shown[number] == drawn(explorer, positions[number]), positions[number]


@pytest.mark.proof
@pytest.mark.parametrize("path", EXPLORING, ids=lambda path: path.stem[:2])
def test_stored_films_are_what_the_code_draws(path):
    for explorer in films.explorers(path).values():
        assert stored(explorer) == films.film(explorer)
