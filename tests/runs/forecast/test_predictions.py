"""Is the forecast what one gets by hand where one can?"""

import pytest

from dpbook.collectives import AlphaBeta, Link
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import MIB, Layer, Tensor
from dpbook.runs.forecast import Connection, MeasuredStep, NoForecast, check_forecast, forecast, format_checks
from dpbook.runs.forecast.predictions import ForecastCheck
from tests.cases import each

FREE = Connection("free", Link.gigabytes(1000), {n: AlphaBeta(0, 0) for n in (2, 3, 8)})
SLOW = Link.gigabits(1, latency=1e-3)


def layer(name, nbytes, forward=0.01, backward=0.02):
    return Layer(name, forward, backward, (Tensor(name, nbytes // 4),))


def ring(world, nbytes):
    return 2 * (world - 1) * (1e-3 + nbytes / world / 125e6)


ONE = MeasuredStep((layer("a", 10 * MIB),), other=0.005, after=0.007, updates=12)
TWO = MeasuredStep((layer("a", 4 * MIB), layer("b", 4 * MIB)), other=0.005, after=0.007, cap=25 * MIB)


@each("world", [2, 3, 8])
def test_a_free_link_costs_nothing(world):
    (row,) = forecast(TWO, [world], [FREE])
    assert (row.step, row.exposed, row.speedup) == (pytest.approx(TWO.alone), 0, pytest.approx(world))
    assert TWO.alone == pytest.approx(0.005 + 0.06 + 0.007)


@each("world", [2, 3, 8])
def test_nothing_hides_the_message_of_one_layer(world):
    (row,) = forecast(ONE, [world], [Connection("slow", SLOW)])
    seconds = ring(world, 10 * MIB)
    assert (row.exposed, row.step) == (pytest.approx(seconds), pytest.approx(0.042 + seconds))
    assert row.speedup == pytest.approx(world * 0.042 / row.step)
    assert (row.cap, row.as_it_is) == (0, row.step)  # no cap makes a difference


def test_a_smaller_cap_lets_the_wire_begin_a_layer_earlier():
    (row,) = forecast(TWO, [3], [Connection("slow", SLOW)])
    assert row.as_it_is == pytest.approx(0.005 + 0.02 + 0.04 + ring(3, 8 * MIB) + 0.007)
    assert row.step == pytest.approx(0.005 + 0.02 + 0.02 + 2 * ring(3, 4 * MIB) + 0.007)
    assert row.cap == 4 * MIB  # the largest that does it


@each(("sync", "early"), [(True, 0), (False, 1)])
def test_with_accumulation_only_what_is_synced_costs(sync, early):
    """One layer: each micro-batch that is synced is waited for."""
    measured = MeasuredStep(ONE.layers, 0.005, 0.007, accumulation=3, no_sync=sync)
    (row,) = forecast(measured, [2], [Connection("slow", SLOW)])
    assert row.step == pytest.approx(0.005 + 3 * 0.03 + (1 + 2 * early) * ring(2, 10 * MIB) + 0.007)


@each(("stage", "gathers"), [(1, 1), (2, 1), (3, 1)])
def test_stages_of_one_unit(stage, gathers):
    """Its gradient is reduced in half of a ring, and its weights gathered in the other half; a rank updates a share."""
    (row,) = forecast(ONE, [4], [Connection("slow", SLOW)], [stage])
    assert row.step == pytest.approx(0.042 - 0.007 + (1 + gathers) * ring(4, 10 * MIB) / 2 + 0.007 / 4)
    assert (row.cap, row.as_it_is) == (None, None)


def test_frozen_weights_are_gathered_and_not_reduced():
    """Adapters: the gather of stage 3 carries the frozen weights too."""
    measured = MeasuredStep(ONE.layers, 0, 0, frozen={"base": 10 * MIB // 4})
    (row,) = forecast(measured, [4], [Connection("slow", SLOW)], [3])
    assert row.step == pytest.approx(ring(4, 20 * MIB) / 2 + 0.03 + ring(4, 10 * MIB) / 2)


def test_a_unit_that_is_all_frozen_is_no_error():
    frozen = {"blocks.0.weight": 10 * MIB // 4}
    measured = MeasuredStep((layer("blocks.1.weight", MIB),), 0, 0, units=("blocks.0", "blocks.1"), frozen=frozen)
    (row,) = forecast(measured, [2], [Connection("slow", SLOW)], [3])
    plain = forecast(MeasuredStep(measured.layers, 0, 0, units=("blocks.1",)), [2], [Connection("slow", SLOW)], [3])[0]
    assert row.step > plain.step


def test_micro_batches_that_the_ranks_share_are_fewer_on_each():
    """Twelve on one rank are four on each of three, and the speed-up is that of the same batch."""
    whole = MeasuredStep(ONE.layers, 0.005, 0.007, accumulation=12, divided=True)
    row, six = forecast(whole, [3, 6], [Connection("slow", SLOW)])
    assert row.step == pytest.approx(0.005 + 4 * 0.03 + ring(3, 10 * MIB) + 0.007)
    assert row.speedup == pytest.approx((0.012 + 12 * 0.03) / row.step)
    assert six.step == pytest.approx(0.005 + 2 * 0.03 + ring(6, 10 * MIB) + 0.007)
    with pytest.raises(NoForecast, match="12 micro-batches among its ranks, which 8 does not divide"):
        forecast(whole, [8], [Connection("slow", SLOW)])


def test_a_check_takes_the_scripts_own_buckets():
    measured = MeasuredStep(TWO.layers, 0.005, 0.007, world=3, cap=4 * MIB, emulated_seconds=0.1)
    row = check_forecast(measured, Connection("slow", SLOW))
    assert row.forecast == pytest.approx(0.052 + 2 * ring(3, 4 * MIB))
    assert row.miss == pytest.approx(row.forecast / 0.1 - 1)
    with pytest.raises(NoForecast, match="torch's DDP"):
        check_forecast(TWO, Connection("slow", SLOW))


@each(("worlds", "stages"), [([1], [0]), ([2], [4]), ([2.5], [0])])
def test_worlds_and_stages_are_checked(worlds, stages):
    with pytest.raises(InvalidArgument):
        forecast(ONE, worlds, [FREE], stages)


def test_a_check_is_a_row_that_says_which_way_the_forecast_is_off():
    rows = [ForecastCheck("slow", 2, 0.08, 0.1, 0.02, 0.01), ForecastCheck("slow", 3, 0.11, 0.1)]
    lines = format_checks([(ONE, row) for row in rows]).splitlines()
    table = [line for line in lines if line.startswith("slow")]
    assert [line.split()[:2] for line in table] == [["slow", "2"], ["slow", "3"]]
    assert "20.0% too low" in table[0]
    assert "10.0% too high" in table[1]
    assert lines[-1].startswith("note: slow on 3 ranks exposes 0 ms of 110 ms, so this checks the computation")
    assert "slow on 2 ranks" not in "\n".join(lines)
    assert len(lines) == len(set(lines))  # what is measured alike is told once
