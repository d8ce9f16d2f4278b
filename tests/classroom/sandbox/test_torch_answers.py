"""Can an answer claim in its own process what it did not do, or keep there what it should have saved?

In exercise 10.2 it may send after backward and claim that it sent during backward; in 11.5 the process that saves a run
is not the one that resumes it.
"""

import pytest

from dpbook.classroom import judge, task
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import Servers
from tests.classroom.mutants.ch11 import LOADED, SAVED
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
KEPT_BY_THE_FUNCTION = {
    f"return weights, {SAVED}": f"train_on.kept = {SAVED}\n    return weights, {{'at': 0}}",
    LOADED: LOADED.replace("= saved", "= train_on.kept"),
}
"""Edits of the right answer to 11.5: what a resumed run needs stays in the process."""


@pytest.fixture(scope="module")
def servers():
    with Servers(torch=True) as started:
        yield started


def judged(servers, number, changes):
    imports, name, text = reference(number)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    answer = RemoteAnswer(servers, [("cell-1", f"{imports}\n{text}")], name, torch=True)
    report = judge(task(number), answer, 3)
    answer.close()
    return report


@pytest.mark.parametrize("number", ["10.2", "11.5"])
def test_the_right_answer_has_all_points(servers, number):
    assert judged(servers, number, {}).passed


@pytest.mark.parametrize("name", FORGED)
def test_an_answer_that_sends_late_earns_nothing(servers, name):
    before, after = FORGED[name]
    changes = {old: new.format(forged=before, after=after) for old, new in LATE.items()}
    report = judged(servers, "10.2", changes)
    assert report.points == 0, report
    assert report.answered


def test_a_run_is_resumed_in_a_process_that_has_only_what_was_saved(servers):
    report = judged(servers, "11.5", KEPT_BY_THE_FUNCTION)
    assert report.points == 1, report
