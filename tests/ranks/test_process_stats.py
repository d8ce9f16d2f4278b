"""Does `sent` return the bytes that a process writes?"""

import os
from math import isnan

import pytest

from dpbook.ranks import process_stats, sent


@pytest.mark.skipif(not process_stats.IO_COUNTERS.exists(), reason="reads /proc")
def test_the_bytes_sent_are_those_written_meanwhile():
    read, write = os.pipe()
    assert sent(lambda: os.write(write, bytes(12_345))) == 12_345
    os.close(read)
    os.close(write)


def test_without_counters_the_result_is_nan(monkeypatch, tmp_path):
    monkeypatch.setattr(process_stats, "IO_COUNTERS", tmp_path / "none")
    assert isnan(sent(lambda: None))
