"""Do overviews show rounds, bytes and groups, and mark nothing by colour alone?"""

import re

import pytest

from dpbook import figures
from dpbook.book.ch05 import HEIGHT, draw_traffic
from dpbook.collectives import ALGORITHMS, FixedBounds, Round, Schedule, count, parameter_server, ring, tree
from dpbook.core import palette
from dpbook.figures import draw_overview, draw_schedule
from dpbook.planning import Mesh
from tests.cases import each, refuses
from tests.figures.reading import DOUBLE, NS, misplaced, outside, parse, texts

ALL = [parameter_server(4), tree(4), ring(4)]


@each("world", range(1, 17))
def test_an_overview_shows_every_rank_and_stays_in_its_frame(world):
    schedules = [build(world) for build in ALGORITHMS.values()]
    root = parse(draw_overview(*schedules))
    assert texts(root).count(f"rank {world - 1}") == len(schedules)
    assert outside(root) == []


def test_an_overview_says_what_was_counted():
    shown = texts(parse(draw_overview(*ALL)))
    assert shown[0] == "Tree needs the fewest rounds, ring moves the least through one rank"
    assert "6 rounds, 24 messages; busiest rank: 6 MB sent or received, 1.5 × the buffer of 4 MB" in shown


def test_an_overview_draws_an_arrow_for_each_message():
    root = parse(draw_overview(ring(4)))
    arrows = [p for p in root.iter(f"{NS}path") if p.get("fill") == palette.COMMUNICATION]
    assert len(arrows) == 24 + 2  # and two in the legend


def test_a_fault_is_seen_in_an_overview():
    assert "counted twice" in texts(parse(draw_overview(DOUBLE)))
    assert "counted twice" not in texts(parse(draw_overview(*ALL)))


def test_a_schedule_of_one_size_is_counted_at_that_size():
    schedule = Schedule(2, 2, [Round.of([0, 1], [1, 0], [0, 1], True)], FixedBounds((0, 5, 6)))
    assert "the buffer of 24 B" in draw_overview(schedule).svg


def test_pictures_are_deterministic_and_take_a_title():
    assert draw_overview(*ALL).svg == draw_overview(*ALL).svg
    assert draw_overview(*ALL, title="<Mine>").alt.startswith("<Mine>. ")
    assert draw_traffic(ALL, 100).svg == draw_traffic(ALL, 100).svg


@each("world", [1, 2, 3, 8, 9, 16, 32])
@each("size", [1, 10, 10**9])
def test_bars_stay_in_their_frame(world, size):
    root = parse(draw_traffic([build(world) for build in ALGORITHMS.values()], size))
    assert misplaced(root) == []


def test_bars_are_as_high_as_the_bytes_counted():
    schedule = parameter_server(4)
    root = parse(draw_traffic([schedule], 1000))
    groups = [g for g in root.iter(f"{NS}g") if len(g) == 4 and all(n.tag == f"{NS}rect" for n in g)]
    heights = [[float(bar.get("height")) for bar in group] for group in groups]
    counted = count(schedule, 1000)
    scale = HEIGHT / (counted.busiest_bytes * 1.12)
    for found, nbytes in zip(heights, (counted.sent_bytes, counted.received_bytes), strict=True):
        assert found == pytest.approx([n * scale for n in nbytes], abs=0.01)


def test_the_lower_bound_is_named():
    assert "some rank must send this much: 6 MB" in texts(parse(draw_traffic(ALL, 10**6)))


test_bad_input_is_named = refuses(
    (lambda: draw_overview(), "schedules"),
    (lambda: draw_overview("ring"), "schedule"),
    (lambda: draw_overview(ring(17)), "world of ring"),
    (lambda: draw_overview(Schedule(2, 1, [Round.of(0, 1, 0, True)] * 33)), "number of rounds"),
    (lambda: draw_traffic([], 10), "schedules"),
    (lambda: draw_traffic(7, 10), "schedules"),
    (lambda: draw_traffic([ring(4), tree(5)], 10), "world of tree"),
    (lambda: draw_traffic([ring(33)], 10), "world"),
    (lambda: draw_traffic([ring(4)], 0), "size"),
    (lambda: figures.draw_groups(16, 8, 0, "Title"), "mesh"),
    (lambda: figures.draw_groups(Mesh({"dp": 33}), 8, 0, "Title"), "mesh"),
    (lambda: figures.draw_groups(Mesh({"dp": 4}), 0, 0, "Title"), "per_node"),
    (lambda: figures.draw_groups(Mesh({"dp": 4}), 2, 4, "Title"), "rank"),
    (lambda: figures.draw_groups(Mesh({"dp": 4}), 2, 0, " "), "title"),
)


@each("schedule", [ring(1), tree(2), Schedule(2, 1, [Round.of(0, 1, 0, True)])])
@each("draw", [draw_overview, draw_schedule, lambda s: draw_traffic([s], 1)])
def test_one_of_a_kind_is_reported_in_the_singular(draw, schedule):
    words = " ".join([*texts(parse(draw(schedule))), draw(schedule).alt])
    assert not re.search(r"\b1 (round|rank|message|chunk|cell)s\b", words)


SMALL = Mesh({"dp": 2, "tp": 2})
LARGE = Mesh({"dp": 2, "pp": 2, "cp": 2, "ep": 2, "tp": 2})


def test_every_rank_has_the_letter_of_its_group():
    drawn = texts(parse(figures.draw_groups(SMALL, 2, 1, "Pairs")))
    row = drawn.index("2 ranks")
    assert drawn[row + 1 : row + 10] == ["0", "A", "1", "B", "2", "A", "3", "B", "over 2 nodes"]
    assert drawn[-9:] == ["0", "A", "1", "A", "2", "B", "3", "B", "inside a node"]


def test_the_group_of_the_rank_is_bold_and_told_in_words():
    picture = figures.draw_groups(SMALL, 2, 1, "Pairs")
    bold = [node.text for node in parse(picture).iter(f"{NS}text") if node.get("font-weight") == "700"]
    assert bold == ["Pairs", "dp", "1", "B", "B", "tp", "A", "1", "A"]
    assert picture.alt.endswith("The groups of rank 1: dp: 1, 3, over 2 nodes; tp: 0, 1, inside a node.")


@each("mesh", [SMALL, LARGE, Mesh({"tp": 1}), Mesh({"one": 1, "thirty-two": 32})])
@each("per_node", [1, 5, 8])
def test_nothing_is_cut_off_or_overlaps(mesh, per_node):
    picture = parse(figures.draw_groups(mesh, per_node, mesh.world - 1, "A title that says what the reader can see"))
    assert misplaced(picture) == []
