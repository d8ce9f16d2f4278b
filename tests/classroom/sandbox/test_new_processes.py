"""Exercise 11.5: what a resumed run needs is in what was saved, and not in the process that saved it."""

import pytest

from dpbook.classroom import judge, task
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import Servers
from tests.classroom.mutants.ch11 import LOADED, SAVED
from tests.classroom.mutants.edits import reference

pytestmark = pytest.mark.processes

KEPT_BY_THE_FUNCTION = {
    f"return weights, {SAVED}": f"train_on.kept = {SAVED}\n    return weights, {{'at': 0}}",
    LOADED: LOADED.replace("= saved", "= train_on.kept"),
}


@pytest.mark.parametrize(("changes", "points"), [({}, 4), (KEPT_BY_THE_FUNCTION, 1)], ids=["saved", "kept"])
def test_parts_of_a_run_are_in_processes_of_their_own(changes, points):
    imports, name, text = reference("11.5")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    with Servers(torch=True) as servers:
        answer = RemoteAnswer(servers, [("cell-1", f"{imports}\n{text}")], name, torch=True)
        report = judge(task("11.5"), answer, 3)
        answer.close()
    assert report.points == points, report
