"""Does the moving picture show every state at its time, without scripts, and hold still for those who ask?"""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpbook.collectives import ALGORITHMS, ring, tree
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.figures import animate
from dpbook.figures.schedules.animation import REST
from dpbook.figures.schedules.frames import replay
from dpbook.figures.schedules.table import Table
from tests.cases import each
from tests.figures.reading import DOUBLE, NS, outside, parse, texts


def seen(root, time):
    """The texts that are visible at ``time``, a share of the whole."""
    hidden = set()
    for group in root.iter(f"{NS}g"):
        for clock in group.findall(f"{NS}animate[@attributeName='visibility']"):
            times = list(map(float, clock.get("keyTimes").split(";")))
            value = [v for v, t in zip(clock.get("values").split(";"), times, strict=True) if t <= time][-1]
            if value == "hidden":
                hidden |= set(group.iter())
    return [node.text for node in root.iter(f"{NS}text") if node not in hidden]


@pytest.mark.parametrize("schedule", [ring(4), tree(5), DOUBLE], ids=["ring", "tree", "fault"])
def test_at_the_end_of_each_round_its_state_is_seen(schedule):
    root, states = parse(animate(schedule, seconds=2)), replay(schedule)
    total = REST + 2 * len(schedule.rounds) + 3 * REST
    table = Table(states)
    for state in states:
        time = (REST + 2 * state.index - 0.05) / total
        cells = "".join(table.cell(state, r, c) for r in range(table.world) for c in range(table.n_chunks))
        parts = [table.frame, table.heading(state), cells, table.labels(state), table.numbers(state)]
        wanted = [t for part in parts for t in texts(ElementTree.fromstring(f'<g xmlns="{NS[1:-1]}">{part}</g>'))]
        assert sorted(seen(root, time)) == sorted(wanted)


@each("build", ALGORITHMS.values())
@each("world", [1, 2, 3, 8, 9])
def test_times_are_in_order_and_nothing_is_clipped(build, world):
    root = parse(animate(build(world)))
    assert outside(root) == []
    for clock in [*root.iter(f"{NS}animate"), *root.iter(f"{NS}animateMotion")]:
        times = list(map(float, clock.get("keyTimes").split(";")))
        assert times[0] == 0
        assert times == sorted(set(times))
        assert times[-1] <= 1
        assert len(times) == len((clock.get("values") or clock.get("keyPoints")).split(";"))


def test_it_has_no_script_and_nothing_from_elsewhere():
    svg = animate(ring(4)).svg
    assert "<script" not in svg
    assert svg.count("http") == 1


def test_less_motion_is_respected():
    assert "prefers-reduced-motion" in animate(ring(3)).svg


def test_the_picture_of_the_readme_is_what_is_drawn_now():
    shown = Path(checkout.root(), "docs", "viewer.svg").read_text(encoding="utf-8")
    assert shown == animate(ring(4)).svg + "\n", "figures.animate(ring(4)).save('docs/viewer.svg') draws it anew"


@each("seconds", [0, -1, 1e9, "2", float("nan"), True])
def test_an_impossible_pace_is_refused(seconds):
    with pytest.raises(InvalidArgument, match=r"^seconds "):
        animate(ring(2), seconds=seconds)
