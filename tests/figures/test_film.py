"""Does the moving picture show every state at its time, without scripts, and hold still for those who ask?"""

import re
from base64 import b64decode
from pathlib import Path

import pytest

from dpbook.collectives import ALGORITHMS, ring, tree
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.figures import Picture, animate, draw_schedule
from dpbook.figures.card.film import Film, Frame
from dpbook.figures.card.svg import text
from tests.cases import each
from tests.figures.reading import DOUBLE, NS, frames, outside, parse, texts

PACE = 2.0


def when(group):
    """From when to when a group is seen, in seconds."""
    change = group.find(f"{NS}set")
    if change is None:
        return 0.0, float("inf")
    begin = float(re.fullmatch(r"clock\.begin\+([\d.]+)s", change.get("begin"))[1])
    end = begin + float(change.get("dur")[:-1])
    if change.get("to") == "hidden":
        assert begin == 0
        assert group.get("visibility") is None
        return end, float("inf")
    assert group.get("visibility") == "hidden"
    return begin, end


@pytest.mark.parametrize("schedule", [ring(4), tree(5), DOUBLE], ids=["ring", "tree", "fault"])
def test_at_every_moment_one_state_is_seen_and_each_at_its_time(schedule):
    film = animate(schedule, seconds=PACE)
    states = [(*when(group), group) for kind in ("way", "frame") for group in frames(film, kind)]
    for place in range(len(schedule.rounds) + 1):
        for moment in (0.1, 1.0, 1.9):
            seen = [group for begin, end, group in states if begin <= place * PACE + moment < end]
            assert len(seen) == 1
        assert texts(seen[0]) == texts(parse(draw_schedule(schedule, place)))


def test_what_is_under_way_shows_the_cells_of_before_and_carries_what_is_sent():
    """Round 1 of a ring of 3: each cell still has its own number, and +a, +b and +c are on their way."""
    first = frames(animate(ring(3)), "way")[0]
    assert [t for t in texts(first) if t in {"1", "10", "100"}] == [*("1",) * 3, *("10",) * 3, *("100",) * 3]
    chips = [group for group in first.iter(f"{NS}g") if group.find(f"{NS}animateMotion") is not None]
    assert sorted(text for chip in chips for text in texts(chip)) == ["+a", "+b", "+c"]
    assert {chip.find(f"{NS}animateMotion").get("begin") for chip in chips} == {"way1.begin"}


@each("build", ALGORITHMS.values())
@each("world", [1, 2, 3, 8, 9])
def test_nothing_is_clipped(build, world):
    film = animate(build(world))
    size = parse(film).get("viewBox")
    for group in frames(film):
        group.set("viewBox", size)
        assert outside(group) == []


def test_it_has_no_script_and_nothing_from_elsewhere():
    svg = animate(ring(4)).svg
    assert "<script" not in svg
    assert svg.count("http") == 1


def test_less_motion_and_paper_get_the_last_frame():
    html = animate(ring(3)).html
    (still,) = re.findall(r'<source media="\(prefers-reduced-motion:reduce\),print" srcset="[^,]+,([^"]+)">', html)
    assert b64decode(still).decode() == draw_schedule(ring(3), 4).svg
    style = parse(animate(ring(3))).find(f"{NS}style").text
    assert "@media (prefers-reduced-motion:reduce),print{.way,.frame{display:none}" in style
    assert frames(animate(ring(3)))[-1].get("visibility") is None


def test_a_film_of_one_frame_stands_still():
    film = Film([Frame(Picture(80, 40, [text(5, 20, "alone")], "alone"))], 1.0, "one")
    assert when(frames(film)[0]) == (0.0, float("inf"))


def test_the_picture_of_the_readme_is_what_is_drawn_now():
    shown = Path(checkout.root(), "docs", "viewer.svg").read_text(encoding="utf-8")
    assert shown == animate(ring(4)).svg + "\n", "figures.animate(ring(4)).save('docs/viewer.svg') draws it anew"


@each("seconds", [0, -1, 1e9, "2", float("nan"), True])
def test_an_impossible_pace_is_refused(seconds):
    with pytest.raises(InvalidArgument, match=r"^seconds "):
        animate(ring(2), seconds=seconds)
