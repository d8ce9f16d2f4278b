"""Is a race judged by what it says: rates by the validation images, the rest by the best rate's runs?"""

import re

import numpy as np
import pytest

from dpbook.book.ch16 import Entry, Raced, curves, explore_race, race, race_over, table
from dpbook.book.ch16.racing import EVALUATION_STEPS
from dpbook.collectives import Link
from dpbook.core import InvalidArgument
from dpbook.replicas import Exact, train
from dpbook.replicas.inexact import LocalSGD, Parabolas
from tests.cases import each
from tests.figures.reading import parse, texts

SLOW, FAST = Link(0.05, 1e6, "slow"), Link(0.05, 1e9, "fast")
ONES = np.ones(6)


def raced(losses, sent, rounds=2.0, seconds=1.0, late=False):
    """Looks with these losses, for both of two seeds; every step sends and waits alike."""
    steps = EVALUATION_STEPS * len(losses)
    entry = Entry(Exact(), (0.1, 0.2, 0.4), seconds, late=late)
    test = np.tile(np.array(losses)[:, None], 2)
    return Raced(entry, np.array([[3.0, 3], [1, 2], [2, 2]]), test, np.full(steps, sent), np.full(steps, rounds))


def parabola(minimum):
    return ONES, minimum * ONES


def around(minimum, rates=(0.01, 0.05, 0.3), steps=EVALUATION_STEPS, method=None, seeds=2):
    """From 1, along a parabola with its minimum at 0, on two ranks; validation prefers another place."""
    entries = {"exact": Entry(method or Exact(), rates, 1.0, momentum=0)}
    data = parabola(0.0), parabola(minimum), parabola(0.0)
    return race(Parabolas(1.0), *data, entries, world=2, steps=steps, seeds=seeds, global_batch=6)["exact"]


@each(("minimum", "best"), [(1.0, 0), (0.95**EVALUATION_STEPS, 1), (0.0, 2)])
def test_the_validation_data_choose_the_rate_and_the_test_data_nothing(minimum, best):
    found = around(minimum)
    assert found.best == best
    assert found.inside == (best == 1)
    rate = found.entry.rates[best]
    assert found.losses == pytest.approx([(1 - rate) ** (2 * EVALUATION_STEPS) / 2])


def test_a_look_sees_what_a_shorter_run_would_end_with():
    found = around(0.0, (0.05, 0.1, 3.0), 2 * EVALUATION_STEPS, LocalSGD(EVALUATION_STEPS))
    ends = [
        train(Parabolas(1.0), parabola(0.0), 2, lr=0.1, steps=steps).params[0, 0]
        for steps in (EVALUATION_STEPS, 2 * EVALUATION_STEPS)
    ]
    assert found.losses == pytest.approx([end**2 / 2 for end in ends])
    assert found.bytes.tolist() == [8, 16]  # one float64 to the other rank, or back, after every EVALUATION_STEPS steps


def test_seconds_add_up_and_those_of_a_late_gradient_hide():
    for late, step in ((False, 0.05 + 2 * 0.05 + 0.03), (True, 2 * 0.05 + 0.03)):
        found = raced([1, 0.5, 0.1], 10_000, seconds=0.05, late=late)
        assert found.clock(SLOW, scale=3) == pytest.approx(step * EVALUATION_STEPS * np.arange(1, 4))
    assert raced([1, 1, 1], 1000, seconds=9, late=True).clock(SLOW)[0] == 9 * EVALUATION_STEPS


def test_a_budget_ends_at_the_last_look_within_it():
    found = raced([1, 0.5, 0.1], 1000)
    assert [found.within(found.bytes, budget) for budget in (8000, 15_999, 16_000, 1e9)] == [1, 1, 0.5, 0.1]
    assert np.isnan(found.within(found.bytes, 7999))
    assert (found.first(found.bytes, 0.5), found.first(found.bytes, 0.05)) == (16_000, np.inf)


def test_the_table_has_a_line_for_each_and_a_dash_for_what_is_not_there_yet():
    losses = [6.0, 5, 4, 3, 2, 1]
    found = {"exact": raced(losses, 1000), "small": raced(losses, 10), "slow": raced(losses, 1000, seconds=2)}
    lines = [line.split() for line in table(found, [SLOW], 1.0).splitlines()]
    assert lines[1] == ["exact", "0.20", "100.0%", "1.00", "–", "2.00"]  # 40 steps are five looks
    assert lines[2] == ["small", "0.20", "1.0%", "1.00", "1.00", "2.00"]
    assert lines[3] == ["slow", "0.20", "100.0%", "1.00", "–", "5.00"]  # 40 · 1.101 s are 20.96 of its steps


def test_a_picture_names_who_is_first_over_its_link():
    found = {"exact": raced([1, 0.2, 0.1], 1e6), "mine": raced([1, 0.5, 0.2], 10)}
    slow, fast = (race_over(found, link, 1.0).alt for link in (SLOW, FAST))
    assert slow.startswith("slow: mine is first, exact takes 1.3×")
    assert fast.startswith("fast: first at a loss of 0.2 is exact")
    assert "bf16 never" in race_over({**found, "bf16": raced([1, 1, 1], 1)}, FAST, 1.0).alt


def test_the_knob_goes_through_the_links():
    explorer = explore_race({"exact": raced([1, 0.2, 0.1], 1e6), "top-k": raced([1, 0.5, 0.2], 10)}, 1e4, "NVLink 4")
    assert explorer.figure.alt.startswith("NVLink 4: first at a loss of 0.2 is exact")
    explorer.set(link="Ethernet 1 Gb/s")
    assert re.match(r"Ethernet 1 Gb/s: top-k is first, exact takes [\d.]+×\.", explorer.figure.alt)


def test_curves_say_where_they_begin_and_end():
    alt = curves({"a": np.array([1.0, 20]), "b": np.array([2.0, 4])}, np.array([1, 64]), "T", across="x", up="y").alt
    assert alt == "T. y by x, from 1 to 64. a: 1 to 20; b: 2 to 4."


def test_a_logarithmic_axis_of_few_values_has_a_tick_at_each():
    picture = curves({"a": np.array([3.0, 2, 1])}, np.array([4, 16, 64]), "T", across="ranks", up="y", log="x")
    assert {"4", "16", "64"} <= {*texts(parse(picture))}


def test_a_race_of_uneven_looks_is_refused():
    with pytest.raises(InvalidArgument, match=r"^steps "):
        around(0.0, steps=EVALUATION_STEPS + 1)
