"""Do viewers and films show every state once and in time, and do explorers follow their knobs?"""

import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpbook.collectives import ALGORITHMS, ring, tree
from dpbook.core import checkout
from dpbook.core.errors import DpbookError, InvalidArgument
from dpbook.figures import Explorer, Knob, Picture, animate, draw_schedule, play
from dpbook.figures.card import viewer
from dpbook.figures.card.svg import text
from dpbook.figures.card.viewer import EXPLORER_MIME, PLAYER_MIME, Film, Frame
from tests.cases import each
from tests.figures.reading import DOUBLE, NS, frames, outside, parse, texts


def test_it_offers_the_frames_the_moving_picture_and_the_words():
    bundle, _ = play(ring(4))._repr_mimebundle_()
    assert set(bundle) == {PLAYER_MIME, "text/html", "text/plain"}
    assert bundle[PLAYER_MIME].items() >= {"step": "round", "pace": 1.2, "at": 0}.items()
    image = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])[1]
    assert b64decode(image).decode() == bundle[PLAYER_MIME]["svg"]
    assert bundle["text/plain"] == f"Viewer. {draw_schedule(ring(4), 0).alt}"


@each("world", [1, 2, 5, 9, 16])
def test_every_state_is_in_it_with_its_words(world):
    viewer, rounds = play(tree(world)), len(tree(world).rounds)
    found = frames(viewer.film)
    assert [frame.find(f"{NS}title").text for frame in found] == [
        draw_schedule(tree(world), after).alt for after in range(rounds + 1)
    ]
    for after, frame in enumerate(found):
        assert texts(frame) == texts(parse(draw_schedule(tree(world), after)))


def test_it_begins_where_it_was_left():
    viewer = play(ring(4))
    viewer.show(3)
    assert viewer._repr_mimebundle_()[0][PLAYER_MIME]["at"] == 3
    assert viewer.picture.alt == draw_schedule(ring(4), 3).alt


def test_the_readers_own_buffers_are_shown():
    buffers = np.array([[(r + 1) * 10 + c for c in range(4)] for r in range(4)])
    viewer = play(ring(4), buffers)
    viewer.show(6)
    assert all(f">{total}<" in viewer.picture.svg for total in (100, 104, 108, 112))


def test_what_states_share_is_there_once():
    """The film has 15 states of 8 ranks, and motion between them; separate pictures would have 2.5 times its size."""
    alone = sum(len(draw_schedule(ring(8), after).svg) for after in range(15))
    assert 2.5 * len(play(ring(8)).film.svg) < alone


def test_a_round_that_is_not_there_is_refused():
    with pytest.raises(InvalidArgument, match=r"^after must be an integer from 0 to 6"):
        play(ring(4)).show(7)


@pytest.mark.parametrize("use", ["", "figures.draw_schedule(ring(4)); figures.animate(ring(4)); figures.play(ring(4))"])
def test_drawing_schedules_loads_nothing_heavy(use):
    code = (
        f"import sys; from dpbook import figures; from dpbook.collectives import ring; {use}\n"
        "print(*sorted({'torch', 'matplotlib', 'IPython'} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == []


PACE = 1.6


def when(group):
    """Return the times in seconds at which a group appears and disappears."""
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
    film = animate(schedule)
    states = [(*when(group), group) for kind in ("way", "frame") for group in frames(film, kind)]
    for place in range(len(schedule.rounds) + 1):
        for moment in (0.1, 0.8, 1.5):
            seen = [group for begin, end, group in states if begin <= place * PACE + moment < end]
            assert len(seen) == 1
        assert texts(seen[0]) == texts(parse(draw_schedule(schedule, place)))


def test_what_is_under_way_shows_the_cells_of_before_and_carries_what_is_sent():
    """In round 1 of a ring of 3 each cell still has its own number, and +a, +b and +c are under way."""
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


def draw(a, b):
    if a == b:
        raise DpbookError("a and b are <equal>")
    return Picture(80, 40, [text(5, 20, f"{a}/{b}")], f"{a} and {b}")


KNOBS = [Knob("a", "A", {"one": 1, "two": 2}, "two"), Knob("b", "B", {"x": 10, "y": 2})]


@pytest.fixture
def explorer():
    return Explorer(draw, KNOBS)


def test_it_starts_as_its_knobs_do(explorer):
    assert explorer.chosen == {"a": "two", "b": "x"}
    assert explorer.figure.alt == "2 and 10"
    assert repr(explorer) == "Explorer. 2 and 10"


def test_turning_a_knob_from_code_redraws(explorer):
    explorer.set(a="one")
    assert explorer.figure.alt == "1 and 10"


def test_a_drawing_that_asks_for_it_gets_the_last_position():
    def with_ghost(a, b, before):
        return Picture(80, 40, [], f"{a} and {b} after {before}")

    explorer = Explorer(with_ghost, KNOBS)
    assert explorer.figure.alt == "2 and 10 after None"
    explorer.set(b="y")
    explorer.set(a="one")
    assert explorer.figure.alt == "1 and 2 after {'a': 2, 'b': 2}"


def test_what_is_stored_has_the_knobs_where_they_stand_and_the_picture(explorer):
    explorer.set(b="x", a="one")
    bundle = explorer._repr_mimebundle_()[0]
    assert set(bundle) == {EXPLORER_MIME, "text/html", "text/plain"}
    assert bundle[EXPLORER_MIME]["knobs"] == [
        {"name": "a", "label": "A", "values": ["one", "two"], "at": 0},
        {"name": "b", "label": "B", "values": ["x", "y"], "at": 0},
    ]
    assert explorer.figure.image in bundle["text/html"]


def test_the_same_figure_has_the_same_name_in_another_kernel_and_another_has_not(explorer):
    others = Explorer(draw, KNOBS), Explorer(draw, KNOBS[::-1])
    names = [one._repr_mimebundle_()[0][EXPLORER_MIME]["name"] for one in (explorer, *others)]
    assert names[0] == names[1] != names[2]


def answers_to(question):
    """Return the kernel's answers to a page that sends ``question``."""
    answers = []
    page = SimpleNamespace(send=answers.append, on_msg=lambda turn: setattr(page, "turn", turn))
    viewer._on_open(page, {})
    page.turn({"content": {"data": question}})
    return answers


def test_a_page_turns_the_knobs_of_the_figure_that_it_shows(explorer):
    name = explorer._repr_mimebundle_()[0][EXPLORER_MIME]["name"]
    assert answers_to({"name": name, "chosen": {"a": "one", "b": "x"}}) == [{"figure": Explorer(draw, [
        Knob("a", "A", {"one": 1}), KNOBS[1]]).figure.html}]  # fmt: skip
    assert explorer.chosen == {"a": "one", "b": "x"}
    assert answers_to({"name": name, "chosen": {"a": "two", "b": "y"}}) == [{"error": "a and b are <equal>"}]
    assert explorer.chosen == {"a": "one", "b": "x"}  # as the picture that is seen
    assert [set(answer) for answer in answers_to({"name": name, "chosen": {"a": "three"}})] == [{"error"}]


def test_a_drawing_that_was_interrupted_leaves_the_figure_where_it_was():
    def interrupted(a):
        if a == 2:
            raise KeyboardInterrupt
        return draw(a, 1)

    explorer = Explorer(interrupted, [Knob("a", "A", {"one": 1, "two": 2})])
    with pytest.raises(KeyboardInterrupt):
        explorer.turned({"a": "two"})
    assert explorer.chosen == {"a": "one"}


def test_a_page_whose_figure_this_kernel_has_not_drawn_is_reported():
    assert answers_to({"name": "of another kernel", "chosen": {}}) == [{"gone": True}]


@pytest.mark.parametrize("choices", [{"a": "three"}, {"c": "x"}, {"a": 1}])
def test_what_no_knob_can_be_is_refused(explorer, choices):
    with pytest.raises(InvalidArgument):
        explorer.set(**choices)
    assert explorer.chosen == {"a": "two", "b": "x"}


def test_a_knob_needs_values_and_a_start_among_them():
    for values, start in (({}, None), ({"x": 1}, "y")):
        with pytest.raises(InvalidArgument):
            Knob("a", "A", values, start)
