"""Is the record of measured steps that ships with the package read as it was written?"""

import pytest

from dpbook.overlap import StepRecord, recorded_steps


def test_an_error_is_that_of_the_median_and_the_worst_is_shown():
    predicted, measured = {1: (20, 21, 22), 25: (27, 28, 30)}, {1: (20, 20, 25), 25: (30, 35, 37)}
    record = StepRecord({}, {}, predicted, measured, {"machine": "a laptop", "torch": "2.13.0", "date": "2026-11-20"})
    assert [record.error(cap) for cap in (1, 25)] == pytest.approx([0.05, -0.2])
    assert "predictions off by -20.0% at worst" in repr(record)


def test_the_recorded_steps_name_their_machine_and_versions():
    record = recorded_steps()
    assert {"machine", "torch", "python", "system", "date", "link"} <= record.about.keys()
    assert record.emulated.keys() == record.real.keys() >= {"torch", "bucketed", "flat", "naive", "local"}
    assert record.predicted.keys() == record.measured.keys() == {1, 2, 5, 10, 25}
