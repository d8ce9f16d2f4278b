"""Does the viewer of a sharded step show which rank holds which piece, from moment to moment?"""

from xml.etree import ElementTree

import pytest

from dpbook.book.ch14 import play_sharding
from dpbook.core import palette
from dpbook.figures.steps import CONTENT_FILLS
from dpbook.overlap import Sharding, Wires, equal_units, simulate_sharded
from tests.cases import each, refuses
from tests.figures.reading import NS, frames, misplaced, parse

N = 3
BAR, THIN = "14", "6"


def step(stage=3, shards=N, replicas=1, units=2, **options):
    """Forward 1 second, backward 2, and 1 for each half of a collective."""
    wires = Wires(lambda n: 1, lambda n: 1, lambda n: 2, lambda n: 1)
    how = Sharding(stage, shards, replicas=replicas, **options)
    return simulate_sharded(equal_units(units, units, 2 * units, 9 * units), how, wires, optimizer=1)


def at(viewer, film, moment):
    """The frame from a moment on, as rows: of each rank and unit the pieces of weights, gradients, optimizer state.

    A letter for each piece: w kept, g gathered, . nothing, p a gradient of its own examples, r reduced, o optimizer.
    """
    place = film.index(moment)
    viewer.show(place)
    letters = {CONTENT_FILLS[c]: c[0] for c in ("weights", "optimizer", "reduced")}
    letters |= {CONTENT_FILLS["gathered"]: "g", CONTENT_FILLS["gradients"]: "p", palette.PANEL: "."}
    root = parse(viewer.picture)
    named = [float(n.get("y")) for n in root.iter(f"{NS}text") if (n.text or "").startswith("rank ")]
    boxes = [n for n in root.iter(f"{NS}rect") if n.get("height") in (BAR, THIN) and not n.get("rx")]
    boxes = [n for n in boxes if float(n.get("y")) > named[0] - 22]
    rows = {}
    for node in boxes:
        rows.setdefault(float(node.get("y")), []).append((float(node.get("x")), letters[node.get("fill")]))
    return ["".join(letter for _, letter in sorted(rows[y])) for y in sorted(rows)]


def moments(step):
    return sorted({*step.starts, *step.ends})


def test_stage_3_by_hand():
    """Units 1 and 2 side by side, three pieces each; rank after rank: weights, gradients, optimizer state."""
    played = step()
    viewer, film = play_sharding(played), moments(played)
    nothing = ["w..w..", "......", "o..o..", ".w..w.", "......", ".o..o.", "..w..w", "......", "..o..o"]
    assert at(viewer, film, 0) == nothing  # unit 1 is on its way
    forward = at(viewer, film, 1)
    assert forward[::3] == ["wggw..", "gwg.w.", "ggw..w"]
    assert at(viewer, film, 2)[::3] == ["w..wgg", ".w.gwg", "..wggw"]
    backward = at(viewer, film, 4)  # of unit 2, which was gathered once more from 3 on
    assert backward[::3] == ["w..wgg", ".w.gwg", "..wggw"]
    assert backward[1::3] == ["...ppp"] * 3
    assert at(viewer, film, 6)[1::3] == ["pppppp"] * 3  # unit 2 is being reduced
    assert at(viewer, film, 7)[1::3] == ["ppprpp", "pppprp", "pppppr"]  # reduced, and nobody has looked yet
    assert at(viewer, film, 8)[1::3] == ["pppr..", "ppp.r.", "ppp..r"]
    assert at(viewer, film, 9)[1::3] == ["r..r..", ".r..r.", "..r..r"]
    assert at(viewer, film, film[-1]) == nothing


@each(
    ("stage", "moment", "gradients"),
    [  # backward 2 to 4 and 4 to 6; reduced an all-reduce of 2, or a half of it, later
        (0, 4, ["pppppp"] * 3),
        (0, 6, ["ppprrr"] * 3),
        (0, 8, ["rrrrrr"] * 3),
        (1, 5, ["ppprpp", "pppprp", "pppppr"]),
        (2, 5, ["ppprpp", "pppprp", "pppppr"]),
        (2, 6, ["pppr..", "ppp.r.", "ppp..r"]),
    ],
)
def test_gradients_of_the_other_stages(stage, moment, gradients):
    played = step(stage)
    shown = at(play_sharding(played), moments(played), moment)
    assert shown[::3] == ["wwwwww"] * 3
    assert shown[1::3] == gradients
    assert shown[2::3] == (["oooooo"] * 3 if not stage else ["o..o..", ".o..o.", "..o..o"])


def test_replicas_hold_the_same_pieces():
    played = step(shards=2, replicas=2)
    assert at(play_sharding(played), moments(played), 0)[::3] == ["w.w.", ".w.w"] * 2


def test_what_is_on_its_way_is_striped():
    played = step()
    root = parse(play_sharding(played).picture)
    striped = [n for n in root.iter(f"{NS}line") if n.get("stroke") == CONTENT_FILLS["gathered"]]
    assert len(striped) == N * (N - 1)  # of unit 1 what each rank lacks


def test_a_frame_says_what_runs_and_what_is_held():
    viewer = play_sharding(step())
    viewer.show(1)
    assert viewer.picture.alt.startswith("1,000 ms: all-gather 2 and forward 1.")
    assert viewer.picture.alt.endswith("Each rank has: unit 1 whole, no gradient, unit 2 being gathered, no gradient.")


@pytest.mark.parametrize("options", [{}, {"stage": 1}, {"shards": 2, "replicas": 2, "units": 6}])
def test_a_film_stays_inside_its_frames_and_is_small(options):
    film = play_sharding(step(**options)).film
    assert len(film.svg) < 400_000
    for frame in frames(film)[:: max(1, len(film.frames) // 4)]:
        whole = ElementTree.Element("svg", viewBox=f"0 0 {film.width} {film.height}")
        whole.append(frame)
        assert misplaced(whole) == []


test_what_cannot_be_played_is_named = refuses(
    (lambda: play_sharding(3), "step must be a ShardedStep"),
    (lambda: play_sharding(step(shards=5)), "step must be one of at most 6 units"),
    (lambda: play_sharding(step(units=7)), "step must be one of at most 6 units"),
)
