"""Is what a rank is said to send what it has written?"""

import os

import pytest

from dpbook.ranks import sent
from dpbook.ranks.messages import written


@pytest.mark.skipif(not written.COUNTERS.exists(), reason="reads /proc")
def test_what_is_sent_is_what_a_process_writes_meanwhile():
    read, write = os.pipe()
    assert sent(lambda: os.write(write, bytes(12_345))) == 12_345
    os.close(read)
    os.close(write)


def test_where_nothing_counts_no_number_is_made_up(monkeypatch, tmp_path):
    monkeypatch.setattr(written, "COUNTERS", tmp_path / "none")
    found = sent(lambda: None)
    assert found != found
