"""Does the race show every runner at the same moments, and say who has won by how much?"""

from dpbook.figures import play_race
from dpbook.overlap import Span, Timeline
from tests.cases import refuses
from tests.figures.reading import misplaced, parse, texts


def step(*calls):
    """Computation from 0 to 60 ms, and these calls, in ms."""
    spans = [
        Span("forward 1", 0, "compute", "computation", 0, 0.02),
        Span("backward 1", 0, "compute", "computation", 0.02, 0.06),
    ]
    spans += [
        Span(f"all-reduce {k}", 0, "link", "communication", a / 1e3, b / 1e3) for k, (a, b) in enumerate(calls, 1)
    ]
    return Timeline(tuple(spans))


RUNNERS = {"late": step((60, 120)), "early": step((30, 60), (60, 80))}


def at(viewer, share):
    """Label at this share of the longest step."""
    viewer.after = round(share * viewer._steps)
    assert viewer.after == share * viewer._steps
    return texts(parse(viewer.picture))


def test_its_moments_are_equally_far_apart():
    """Half of the frames is half of the time: 60 of 120 ms."""
    shown = at(play_race(RUNNERS), 1 / 2)
    assert {"60 ms of 120 ms", "60 ms of 80 ms"} <= set(shown)


def test_the_meters_count_what_has_passed():
    """At 70 ms of 120 one has computed for 60 of 70 ms and hidden none of 10; the other hidden 30 of 40."""
    viewer = play_race(RUNNERS)
    shown = at(viewer, 7 / 12)
    assert [line for line in shown if line.endswith("%")] == ["0%", "86%", "75%", "86%"]
    assert [line for line in at(viewer, 0) if line.endswith("%")] == ["0%"] * 4
    assert at(viewer, 0)[0] == "late, early: all start together"


def test_who_has_finished_stands_still_and_the_last_title_says_who_won():
    viewer = play_race(RUNNERS)
    assert "After 100 ms: early finished" in at(viewer, 10 / 12)
    shown = at(viewer, 1)
    assert shown[0] == "First: early with 80 ms, 33% less than late (120 ms)"
    assert {"finished after 120 ms", "finished after 80 ms"} <= set(shown)
    assert [line for line in shown if line.endswith("%")] == ["0%", "50%", "60%", "75%"]


def test_equally_fast_runners_have_no_winner():
    viewer = play_race({"a": step((60, 80)), "b": step((60, 80)).shifted(1.0)})
    assert at(viewer, 1)[0] == "All finished after 80 ms"


def test_every_moment_fits_into_a_picture_of_one_size():
    viewer, sizes = play_race(RUNNERS), set()
    for after in range(viewer._steps + 1):
        viewer.after = after
        root = parse(viewer.picture)
        sizes.add(root.get("viewBox"))
        assert misplaced(root) == []
    assert len(sizes) == 1


def test_a_long_name_leaves_room_for_the_meters():
    root = parse(play_race({name * 20: runner for name, runner in RUNNERS.items()}).picture)
    assert misplaced(root) == []


test_no_runner_is_no_race = refuses((lambda: play_race({}), "timelines"))
