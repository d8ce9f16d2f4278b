"""Is a record of measured steps read as it was written, and any other file refused?"""

import json

import pytest

from dpbook.core.errors import DpbookError
from dpbook.overlap import recorded_steps

RECORD = {
    "what": "steps",
    "emulated": {"naive": [30.0, 31.0, 35.0], "local": [10.0, 10.0, 11.0]},
    "real": {"naive": [29.0, 31.0, 36.0], "local": [10.0, 10.0, 11.0]},
    "caps_mib": [1, 25],
    "predicted": [[20.0, 21.0, 22.0], [27.0, 28.0, 30.0]],
    "measured": [[20.0, 20.0, 25.0], [30.0, 35.0, 37.0]],
    "machine": "a laptop",
    "torch": "2.13.0",
    "date": "2026-11-20",
}


@pytest.fixture
def write(tmp_path):
    def write_record(**changes):
        record = {key: entry for key, entry in (RECORD | changes).items() if entry is not None}
        path = tmp_path / "record.json"
        path.write_text(json.dumps(record))
        return path

    return write_record


def test_a_record_is_read(write):
    record = recorded_steps(write())
    assert record.emulated["naive"] == (30, 31, 35)
    assert record.measured == {1: (20, 20, 25), 25: (30, 35, 37)}
    assert record.about["machine"] == "a laptop"
    assert [record.error(cap) for cap in (1, 25)] == pytest.approx([0.05, -0.2])
    assert "predictions off by -20.0% at worst" in repr(record)


@pytest.mark.parametrize("changes", [{"real": None}, {"caps_mib": [1]}, {"machine": None}, {"measured": 3}])
def test_what_is_no_record_is_refused(write, changes):
    with pytest.raises(DpbookError, match=r"record\.json is no record of steps over a slow link"):
        recorded_steps(write(**changes))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DpbookError, match="FileNotFoundError"):
        recorded_steps(tmp_path / "none.json")


def test_the_recorded_steps_name_their_machine_and_versions():
    record = recorded_steps()
    assert {"machine", "torch", "python", "system", "date", "link"} <= record.about.keys()
    assert record.emulated.keys() == record.real.keys() >= {"torch", "bucketed", "flat", "naive", "local"}
    assert record.predicted.keys() == record.measured.keys() == {1, 2, 5, 10, 25}
