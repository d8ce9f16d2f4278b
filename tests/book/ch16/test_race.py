"""Is a race judged by what it says: rates by the validation images, the rest by the best rate's runs?"""

import re

import numpy as np
import pytest

from dpbook.book.ch16 import (
    Entry,
    Raced,
    behind_exact,
    curves,
    explore_race,
    first_by_link,
    leaders,
    period_for,
    race,
    race_over,
    taking_part,
)
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


def test_the_first_evaluation_at_the_goal_counts():
    found = raced([1, 0.5, 0.1], 1000)
    assert (found.first(found.bytes, 0.5), found.first(found.bytes, 0.05)) == (16_000, np.inf)


def test_between_two_meetings_the_last_common_parameters_count():
    entries = {"": Entry(LocalSGD(2 * EVALUATION_STEPS), (0.1,), 1.0, momentum=0)}
    data = (ONES, np.array([1.0, -1] * 3)), parabola(0.0), parabola(0.0)  # no two ranks have the same minimum
    losses = race(Parabolas(1.0), *data, entries, world=2, steps=2 * EVALUATION_STEPS, seeds=1, global_batch=6)[
        ""
    ].losses
    assert losses[0] == 0.5  # that of the start
    assert losses[1] < 0.1


# A link decides the period

PERIODS = {f"local SGD, H = {period}": raced([1, 0.5, 0.1], 1e6 / period) for period in (2, 8, 48)}
RUNS = {"exact": raced([1, 0.2, 0.1], 1e6), **PERIODS}


@each(("link", "scale", "period"), [(SLOW, 1.0, 8), (FAST, 1.0, 2), (SLOW, 100.0, 48)])
def test_the_period_is_that_at_which_a_meeting_costs_a_tenth_of_the_computation(link, scale, period):
    """A meeting takes 1.1 s, 0.1 s or 100 s, and a step computes for 1 s: 11, 1 and 1,001 steps."""
    assert period_for(RUNS, link, scale) == period
    chosen = taking_part(RUNS, link, scale)
    assert [*chosen] == ["exact", "local SGD"]
    assert chosen["local SGD"] is RUNS[f"local SGD, H = {period}"]


def test_the_map_names_the_first_over_each_link_and_how_much_longer_the_exact_loop_takes():
    lines = first_by_link({4: RUNS, 8: {"exact": RUNS["exact"], **PERIODS}}, [FAST, SLOW], 1.0).splitlines()
    assert lines[0].split() == ["H", "4", "ranks", "8", "ranks"]
    assert lines[1].split() == ["fast", "2", *["exact", "1.0×"] * 2]
    exact, local = (
        run.first(run.clock(SLOW), 0.2) for run in (RUNS["exact"], RUNS["local SGD, H = 8"])
    )  # 16 and 24 steps
    assert lines[2].split() == ["slow", "8", *["local", "SGD", "+1", f"{exact / local:.1f}×"] * 2]


def test_a_lead_of_less_than_a_quarter_is_shared():
    assert leaders({"a": 13.0, "b": 10.0, "c": 12.5, "d": np.inf}) == ["b", "c"]
    assert leaders({"a": np.inf, "b": np.inf}) == ["a"]


def test_differences_from_the_exact_loop_are_paired_over_the_seeds():
    exact, other = raced([1.0], 1), raced([1.0], 1)
    exact.test[:] = [[1.0, 5.0]]
    other.test[:] = [[1.5, 5.7]]
    mean, error = behind_exact({"exact": exact, "other": other})["other"]
    assert (mean, error) == pytest.approx((0.6, 0.1))


def test_a_picture_names_who_is_first_over_its_link():
    found = {"exact": raced([1, 0.2, 0.1], 1e6), "mine": raced([1, 0.5, 0.2], 10)}
    slow, fast = (race_over(found, link, 1.0).alt for link in (SLOW, FAST))
    assert slow.startswith("slow: mine is first, exact takes 1.3×")
    assert fast.startswith("fast: exact is first at a loss of 0.2")
    assert "bf16 never" in race_over({**found, "bf16": raced([1, 1, 1], 1)}, FAST, 1.0).alt


def test_the_knob_goes_through_the_links():
    four = {"exact": raced([1, 0.2, 0.1], 1e6), "top-k": raced([1, 0.5, 0.2], 10)}
    explorer = explore_race({4: four, 8: {**four, "top-k": raced([1, 1, 1], 10)}}, 1e4, "NVLink 4")
    assert explorer.figure.alt.startswith("NVLink 4: exact is first at a loss of 0.2")
    explorer.set(link="Ethernet 1 Gb/s")
    assert re.match(r"Ethernet 1 Gb/s: top-k is first, exact takes [\d.]+×\.", explorer.figure.alt)
    explorer.set(ranks="8")
    assert explorer.figure.alt.startswith("Ethernet 1 Gb/s: exact is first at a loss of 0.2")


def test_curves_say_where_they_begin_and_end():
    alt = curves({"a": np.array([1.0, 20]), "b": np.array([2.0, 4])}, np.array([1, 64]), "T", across="x", up="y").alt
    assert alt == "T. y by x, from 1 to 64. a: 1 to 20; b: 2 to 4."


def test_a_logarithmic_axis_of_few_values_has_a_tick_at_each():
    picture = curves({"a": np.array([3.0, 2, 1])}, np.array([4, 16, 64]), "T", across="ranks", up="y", log="x")
    assert {"4", "16", "64"} <= {*texts(parse(picture))}


def test_a_race_of_uneven_looks_is_refused():
    with pytest.raises(InvalidArgument, match=r"^steps "):
        around(0.0, steps=EVALUATION_STEPS + 1)
