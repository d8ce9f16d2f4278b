"""Does the timeline of a step on the stand-in hold what happened, in the rows of host and streams?"""

import pytest

from dpbook.book.ch12 import sim_timeline
from dpbook.core import InvalidArgument

KERNELS = [  # in the order in which they ended
    ("aten.mul_.Tensor", 0, 1.0, 1.5, 3.0),
    ("aten.sub_.Tensor", 0, 2.0, 3.0, 4.0),
    ("c10d::allreduce_", 7, 1.25, 3.0, 6.0),
    ("aten.mul_.Tensor", 0, 6.5, 6.5, 7.0),
]
NAMES = ["backward 1", "all-reduce 1", "optimizer 1", "backward 2"]


def rows(timeline, lane):
    return [(span.name, span.kind, span.start, span.end, span.ready) for span in timeline.spans if span.lane == lane]


def test_kernels_lie_in_the_rows_of_their_streams_and_know_their_launch():
    timeline = sim_timeline(KERNELS, NAMES, 0.5, [(2.0, 6.0)])
    assert timeline.window == (0.5, 7.0)
    assert rows(timeline, "compute stream") == [
        ("backward 1", "computation", 1.5, 3.0, 1.0),
        ("optimizer 1", "computation", 3.0, 4.0, 2.0),
        ("backward 2", "computation", 6.5, 7.0, 6.5),
    ]
    assert rows(timeline, "communication") == [("all-reduce 1", "communication", 3.0, 6.0, 1.25)]


def test_the_host_launches_or_waits_and_never_both():
    timeline = sim_timeline(KERNELS, NAMES, 0.5, [(2.0, 6.0)])
    assert [(kind, start, end) for _, kind, start, end, _ in rows(timeline, "host")] == [
        ("launch", 0.5, 1.0), ("launch", 1.0, 1.25), ("launch", 1.25, 2.0), ("wait", 2.0, 6.0), ("launch", 6.0, 6.5),
    ]  # fmt: skip


def test_every_kernel_has_a_name():
    with pytest.raises(InvalidArgument, match="one for each of 4 kernels"):
        sim_timeline(KERNELS, NAMES[:3], 0.5)
