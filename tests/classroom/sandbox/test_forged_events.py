"""Exercise 10: an answer that sends after backward cannot claim, in its own process, that it sent during backward."""

import pytest

from dpbook.classroom import judge, task
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import Servers
from tests.classroom.mutants.edits import reference

pytestmark = pytest.mark.processes

LATE = {
    "handles = []": "handles, late, wire = [], [], all_reduce.__self__",
    "hook(ready)": "hook(late.append)",
    "while handles:": "{forged}\n        while late:\n            ready(late.pop(0))\n{after}\n        while handles:",
}
"""Edits of the right answer to 10.2: all gradients are sent in ``finish``."""
EVENTS_AFTER = "        wire.log += [('backward', layer) for layer in (6, 5, 4, 3, 2, 1, 0)]"
FORGED = {
    "nothing": ("pass", ""),
    "events after the messages": ("wire.log.clear()", EVENTS_AFTER),
    "layers asked for again": ("pass", "        [wire.factors_of(layer) for layer in (6, 5, 4, 3, 2, 1, 0)]"),
    "factors that nobody is asked for": (
        "wire.factors_of = lambda place: __import__('torch').ones(1, dtype=__import__('torch').float64)",
        EVENTS_AFTER,
    ),
    "a finish that came before": ("wire.log.insert(0, ('finish', 0))", ""),
}


@pytest.fixture(scope="module")
def servers():
    with Servers(torch=True) as started:
        yield started


def judged(servers, changes):
    imports, name, text = reference("10.2")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    answer = RemoteAnswer(servers, [("cell-1", f"{imports}\n{text}")], name, torch=True)
    report = judge(task("10.2"), answer, 3)
    answer.close()
    return report


def test_the_right_answer_has_all_points(servers):
    assert judged(servers, {}).passed


@pytest.mark.parametrize("name", FORGED)
def test_an_answer_that_sends_late_earns_nothing(servers, name):
    before, after = FORGED[name]
    changes = {old: new.format(forged=before, after=after) for old, new in LATE.items()}
    report = judged(servers, changes)
    assert report.points == 0, report
    assert report.answered
