"""Answers that call the library's own solution: they fail, in a check and in grading, and are reported."""

import subprocess
import sys

import pytest

from dpbook.classroom import list_tasks
from dpbook.classroom.marks import find, grade
from dpbook.classroom.tasks.write_your_own import called_in, refuse
from dpbook.core import DpbookError
from tests.cases import each
from tests.classroom.mutants.edits import reference
from tests.classroom.submissions import hand_in

LISTED = [task for task in list_tasks() if task.write_your_own]
CALLS = """
from dpbook import collectives, overlap, planning
from dpbook.classroom.tasks.write_your_own import NotYourOwn, refuse

refuse(["dpbook.collectives.simulate", "dpbook.planning.Mesh", "dpbook.overlap.Timeline.exposed"])
text = '''
def refused(call):
    try:
        call()
    except NotYourOwn as error:
        return str(error).split(": ")[0]

calls = [
    refused(lambda: collectives.simulate(collectives.ring(2), [[1.0], [2.0]])),
    refused(lambda: planning.Mesh({"dp": 2})),
    refused(lambda: overlap.Timeline([overlap.Span("f", 0, "gpu", "computation", 0.0, 1.0)]).exposed()),
]
'''
names = {**globals()}
exec(compile(text, "<answer-05-1>", "exec"), names)
print(names["calls"])
print(collectives.agreement(collectives.ring(2)).agrees)
"""


def test_the_answer_is_refused_and_the_library_is_not():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(["write your own"] * 3), "True"]


@each("task", LISTED)
def test_the_reference_calls_nothing_that_is_refused(task):
    assert called_in(reference(task.id)[2], task.write_your_own) == []


def test_every_listed_name_exists_in_the_library():
    """In a process of its own, whose library then refuses all of them; an error has the name that does not exist."""
    names = sorted({name for task in LISTED for name in task.write_your_own})
    code = f"from dpbook.classroom.tasks.write_your_own import refuse; refuse({names!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (len(names) > 1, done.returncode, done.stderr) == (True, 0, "")


def test_an_unknown_name_is_reported():
    with pytest.raises(DpbookError, match=r"no_such', which the library does not have"):
        refuse(["dpbook.collectives.no_such"])


@each(
    "text",
    [
        "def f():\n    return collectives.simulate(1)",
        "from dpbook.collectives import simulate as s",
        "def f():\n    return simulate(1)",
    ],
)
def test_a_call_is_found_in_the_text(text):
    assert called_in(text, ["dpbook.collectives.simulate"]) == ["dpbook.collectives.simulate"]


@each(
    "text",
    [
        "def simulate():\n    return 1\nsimulate()",
        "x = 'simulate'",
        "import numpy as np\ndef f(rng):\n    return rng.simulate(3)",
        "def f(:",
        "# simulate",
    ],
)
def test_a_function_of_ones_own_with_that_name_is_no_call(text):
    assert called_in(text, ["dpbook.collectives.simulate"]) == []


@pytest.mark.processes
def test_a_submission_that_calls_the_library_earns_nothing_and_is_reported(tmp_path):
    doubling = "def all_reduce(world):\n    return collectives.recursive_doubling(world)"
    hand_in(tmp_path / "anna" / "05.ipynb", 5, {"3": doubling})
    (submission,) = grade(find([tmp_path / "anna"]), 5).submissions
    (marks,) = [task for task in submission.exercises[0].tasks if task.task == "05.3"]
    assert marks.points == 0
    assert "write your own" in str(marks.report)
    assert any("calls dpbook.collectives.recursive_doubling" in remark for remark in marks.remarks)
