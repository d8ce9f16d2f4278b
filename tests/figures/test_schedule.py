"""Does the picture of a schedule show every rank, chunk and message, and nothing outside its frame?"""

import base64
import re

import numpy as np
import pytest

from dpbook.collectives import ALGORITHMS, Round, Schedule, parameter_server, recursive_doubling, ring, tree
from dpbook.core.errors import InvalidArgument
from dpbook.figures import draw_schedule, play
from dpbook.figures.schedules.states import MAX_RANKS
from dpbook.figures.schedules.table import EDGE, levels
from tests.cases import each
from tests.figures.reading import DOUBLE, EXTRA_ROUND, NS, misplaced, outside, parse, texts

WORLDS = [*range(1, 10), 16]


@each("world", WORLDS)
@each("build", ALGORITHMS.values())
def test_every_rank_and_chunk_is_there(build, world):
    schedule = build(world)
    shown = texts(parse(draw_schedule(schedule)))
    assert all(
        {f"rank {rank}", str(rank)} & {*shown} for rank in range(world)
    )  # the number alone if there is little room
    assert [t for t in shown if re.fullmatch(r"chunk \d+", t)] == [f"chunk {c}" for c in range(schedule.n_chunks)]


@each("world", WORLDS)
@each("build", ALGORITHMS.values())
def test_nothing_leaves_the_picture_or_covers_another_text(build, world):
    """The states are those of `draw_schedule`, computed once."""
    schedule = build(world)
    viewer = play(schedule)
    for after in range(len(schedule.rounds) + 1):
        viewer.show(after)
        root = parse(viewer.picture)
        assert misplaced(root) == []


@pytest.mark.parametrize("size", [0, 1, 2, 10, 1_000_000])
def test_uneven_and_empty_chunks_fit_and_show_their_slices(size):
    root = parse(draw_schedule(ring(3), 2, size=size))
    assert outside(root) == []
    assert ("empty" in texts(root)) == (size < 3)
    if size == 10:
        assert {"x[0:4]", "x[4:7]", "x[7:10]"} <= set(texts(root))


def test_a_number_stands_in_every_cell():
    root = parse(draw_schedule(ring(4), 3))
    shown = [t for t in texts(root) if re.fullmatch(r"[01]+", t)]
    partial = ["11", "110", "1100", "1001", "111", "1110", "1101", "1011"]
    assert sorted(shown) == sorted(["1", "10", "100", "1000", *partial, *["1111"] * 4])


@pytest.mark.parametrize(("after", "sign"), [(1, "+"), (4, "=")])
def test_messages_are_labelled_with_chunk_and_operation(after, sign):
    shown = texts(parse(draw_schedule(ring(4), after)))
    assert sorted(t for t in shown if re.fullmatch(r"[+=][a-z]", t)) == [f"{sign}{c}" for c in "abcd"]


def test_the_title_states_the_finding():
    assert "Reduce-scatter, round 3 of 3: 4 of 16 cells are complete" in texts(parse(draw_schedule(ring(4), 3)))


@each(
    ("schedule", "after", "words"),
    [
        (ring(4), 0, "Before round 1 of 6: no cell is complete"),
        (ring(4), 4, "All-gather, round 1 of 3: 8 of 16 cells are complete"),
        (ring(4), 6, "All-gather, round 3 of 3: all 16 cells are complete"),
        (tree(4), 2, "Reduce, round 2 of 2: 1 of 4 cells are complete"),
        (tree(4), 3, "Broadcast, round 1 of 2: 2 of 4 cells are complete"),
        (recursive_doubling(4), 1, "Round 1 of 2: no cell is complete"),
        (EXTRA_ROUND, 4, "Round 4 of 7"),
        (tree(5), 1, "2 chunks are sent and added"),
        (parameter_server(4), 3, "rank 3 sends chunk a to rank 0, which adds it"),
        (DOUBLE, 3, "no cell is complete; 1 counts a contribution twice"),
        (DOUBLE, 5, "4 count a contribution twice"),
        (ring(1), 0, "No rounds: the only cell is complete"),
        (Schedule(2, 1, [Round.of([], [], [], True)]), 1, "nothing is sent"),
        (Schedule(3, 1, [Round.of([0, 1], [1, 2], 0, [True, False])]), 1, "1 chunk is sent and added, 1 chunk is sent"),
    ],
)
def test_the_state_is_reported_in_words(schedule, after, words):
    assert any(words in line for line in texts(parse(draw_schedule(schedule, after))))


@pytest.mark.parametrize("schedule", [DOUBLE, EXTRA_ROUND])
def test_a_fault_has_a_colour_a_pattern_and_a_word(schedule):
    last = draw_schedule(schedule, len(schedule.rounds))
    clean = draw_schedule(ring(4), 6)
    for sign in ("counted twice", f'<g stroke="{EDGE["fault"]}" stroke-width="2.5">'):  # the legend, the hatching
        assert sign in last.svg
        assert sign not in clean.svg
    assert "2" in texts(parse(last))  # in place of the bar


def test_the_same_call_gives_the_same_bytes():
    assert draw_schedule(ring(5), 4).svg == draw_schedule(ring(5), 4).svg


def test_no_scripts_or_addresses():
    svg = draw_schedule(EXTRA_ROUND, 4).svg
    assert not re.search(r"<script|url\(|href", svg)
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]


def test_names_are_escaped_and_shortened():
    name = 'a <b> & "c"\x07 ' + "long " * 60
    picture = draw_schedule(ring(2).named(name))
    root = parse(picture)
    assert outside(root) == []
    assert "<b>" not in picture.html.replace("&lt;b&gt;", "")
    assert any(line.startswith('a <b> & "c"') and line.endswith("…") for line in texts(root))


def test_the_description_holds_every_cell():
    described = parse(draw_schedule(ring(3), 2)).find(f"{NS}desc").text
    assert described.startswith("Rank 0: a 1 (one contribution); b 111 (complete sum); c 101 (partial sum). Rank 1:")


def test_the_alternative_text_says_messages_and_totals():
    alt = draw_schedule(ring(4), 1).alt
    assert "Reduce-scatter, round 1 of 3: no cell is complete. Rank 0 sends chunk a to rank 1, which adds it;" in alt
    assert alt.endswith("So far 4 messages and 16 B in all; each rank has sent 4 B.")


def test_a_notebook_gets_an_image_with_its_text():
    picture = draw_schedule(ring(4), 1)
    bundle, _ = picture._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == repr(picture) == picture.alt
    source = re.fullmatch(
        r'<div [^>]+><img alt="(.+?)" width="\d+" style="[^"]+" src="data:image/svg\+xml;base64,(.+)"></div>',
        bundle["text/html"],
    )
    assert base64.b64decode(source[2]).decode() == picture.svg


def test_a_recording_with_fixed_boundaries_is_drawn_at_its_size():
    from dpbook.collectives import FixedBounds

    schedule = Schedule(2, 2, [Round.of([0, 1], [1, 0], [0, 1], True)], FixedBounds((0, 5, 6)))
    assert {"x[0:5]", "x[5:6]"} <= set(texts(parse(draw_schedule(schedule))))


def test_larger_worlds_are_a_matrix_of_counts():
    root = parse(draw_schedule(ring(MAX_RANKS), 31))
    shown = texts(root)
    assert shown.count(str(MAX_RANKS)) == MAX_RANKS  # each rank owns one complete chunk
    assert outside(root) == []


def test_arcs_that_overlap_have_lanes_of_their_own():
    nested = Round.of([0, 3, 1, 5], [3, 0, 3, 3], 0, True)
    assert levels(list(nested)) == [2, 3, 1, 1]
    assert levels(list(Round.of([0, 1], [1, 2], 0, True))) == [0, 0]


@pytest.mark.parametrize("after", [-1, 7, 1.5, "3", True])
def test_a_round_that_is_not_there_is_refused(after):
    with pytest.raises(InvalidArgument, match=r"^after must be an integer from 0 to 6"):
        draw_schedule(ring(4), after)


def test_long_numbers_stay_in_their_cells():
    root = parse(draw_schedule(ring(2), 0, buffers=np.array([[-1.23456e-100, 7], [2, 3e200]])))
    assert outside(root) == []
    assert any(t.startswith("-1.23e-100") for t in texts(root))
