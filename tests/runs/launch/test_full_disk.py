"""Is a full disk told where torch speaks of positions, and nothing else taken for one?"""

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from dpbook.runs.launch.full_disk import FULL, in_plain_words

Usage = namedtuple("Usage", "total used free")


def raised(call):
    with pytest.raises((RuntimeError, OSError)) as caught:
        call()
    return caught.value


class Small:
    """A file on a disk with room for a few bytes."""

    name = "/there/checkpoint.pt"
    room = 1000

    def write(self, content):
        self.room -= len(content)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content)

    def flush(self):
        pass


def write_by_name():
    torch.save(torch.zeros(10**5), "/dev/full")


def test_a_file_that_is_open_is_named():
    error = raised(lambda: torch.save(torch.zeros(10**5), Small()))
    assert "No space" not in str(error)
    plain = in_plain_words(error)
    assert isinstance(plain, OSError)
    assert (plain.errno, plain.filename) == (errno.ENOSPC, Small.name)
    assert plain.__traceback__ is error.__traceback__


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to Linux's device that is always full")
@pytest.mark.parametrize(("free", "full"), [(FULL - 1, True), (FULL, False)])
def test_a_file_given_by_name_is_named_where_its_disk_is_full(monkeypatch, free, full):
    error = raised(write_by_name)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free if path == Path("/dev") else FULL))
    plain = in_plain_words(error)
    assert str(plain) == "[Errno 28] No space left on device: '/dev/full'" if full else plain is error


def test_another_error_stays_what_it_is():
    error = ValueError("on purpose")
    assert in_plain_words(error) is error
