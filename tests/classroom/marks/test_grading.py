"""Does `dpbook grade` give what is earned: to the solutions everything, to stubs and mutants what they get here?"""

import contextlib
import json
import re
import threading
import time
from typing import Any

import pytest

from dpbook.app import command_line
from dpbook.classroom import Wrong, call, call_each, judge, task
from dpbook.classroom.marks import find, grade
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import Servers
from tests.classroom.mutants.edits import mutants_text
from tests.classroom.submissions import hand_in, solutions
from tests.classroom.test_exercises import EXERCISES, SOLUTIONS, wrong_answers

pytestmark = pytest.mark.processes

WRONG_STEP = "def step(params, gradient, x, y, lr):\n    return params - lr * gradient(params[0], x, y)"
SPEAKING = "def meters(*args):\n    print('printed by meters', args)\n    return 1, 2"
ASKS_ON = """
def asks(serves):
    while True:
        try:
            serves()
        except Exception:
            pass
"""
TRAVELS_HERE = {("10.4", "a lock, which cannot travel")}
"""Mutants that only real processes started from a notebook can catch: for marks nothing of an answer is pickled."""


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classroom")
    hand_in(folder / "perfect" / "01.ipynb", 1, solutions(1))
    hand_in(folder / "partly" / "01.ipynb", 1, {**solutions(1), "2": WRONG_STEP, "3": SPEAKING})
    hand_in(folder / "stub" / "01.ipynb", 1, {})
    hand_in(folder / "broken" / "01.ipynb", 1, {**solutions(1), "3": "def meters(:"})
    (folder / "broken" / "02.ipynb").write_text("no notebook")
    return folder


def test_the_command_gives_what_is_earned_and_says_what_was_not(classroom, capsys):
    assert command_line.main(["grade", str(classroom), "--seed", "5", "--json", "--jobs", "2"]) == 0
    marks = json.loads(capsys.readouterr().out)
    assert {each["name"]: each["points"] for each in marks["submissions"]} == {
        "broken": 8, "partly": 7, "perfect": 11, "stub": 0,
    }  # fmt: skip
    broken, partly, perfect, stub = marks["submissions"]
    assert "SyntaxError" in broken["exercises"][0]["tasks"][2]["reason"]
    assert broken["exercises"][1]["remarks"] == ["not graded: it is not a notebook: its text is not valid JSON"]
    assert partly["exercises"][0]["tasks"][1]["reason"].startswith("own shard")
    assert {each["reason"] for each in stub["exercises"][0]["tasks"]} == {"not answered yet"}
    assert {each["reason"] for each in perfect["exercises"][0]["tasks"]} == {""}


def test_strict_is_for_ci(classroom, capsys, tmp_path):
    files = ["--gradescope", str(tmp_path / "new" / "results.json"), "--html", str(tmp_path), "--csv"]
    done = command_line.main(["grade", str(classroom / "perfect"), "--strict", *files, str(tmp_path / "points.csv")])
    assert done == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["001-perfect.html", "new", "points.csv"]
    assert json.loads((tmp_path / "new" / "results.json").read_text())["score"] == 11
    assert re.search(r"11 of 11 points(.|\n)*seed [0-9]+$", capsys.readouterr().out.strip())
    assert command_line.main(["grade", str(classroom / "partly"), "--strict"]) == 1
    assert command_line.main(["grade", str(classroom / "nowhere")]) == 1


def test_marks_do_not_depend_on_who_else_is_graded(classroom):
    handed = find([classroom])
    assert find([classroom, classroom / "."]) == handed
    together = grade(handed, 5, jobs=2).submissions
    backwards = grade(handed[::-1], 5).submissions
    assert together == backwards[::-1]
    assert [grade([each], 5).submissions[0] for each in handed[:2]] == list(together[:2])


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        ({"01.ipynb": True, "01.new.ipynb": False}, "01.ipynb"),  # an update, as the book has laid it there
        ({"01.ipynb": True, "01.new.ipynb": True}, "01.ipynb"),  # with the answers carried over
        ({"01.ipynb": False, "01.new.ipynb": True}, "01.new.ipynb"),  # the learner went on in the update
        ({"01_a.ipynb": True, "01_b.ipynb": True}, "01_b.ipynb"),
        ({"01_a.ipynb": True, "01_b.ipynb": False}, "01_a.ipynb"),
    ],
)
def test_the_learners_own_notebook_counts_and_not_an_update_beside_it(tmp_path, files, counts):
    for name, is_answered in files.items():
        hand_in(tmp_path / name, 1, {"2": WRONG_STEP} if is_answered else {})
    (submission,) = grade(find([tmp_path], whole=True), 1).submissions
    (left_out,) = files.keys() - {counts}
    assert [exercise.file for exercise in submission.exercises] == [counts]
    assert submission.remarks == (f"{left_out} was not graded: {counts} counts for exercise 01",)


def test_answers_need_not_read_what_was_handed_in(tmp_path):
    """They run as another user where there is one."""
    (tmp_path / "closed").mkdir(mode=0o700)
    hand_in(tmp_path / "closed" / "01.ipynb", 1, solutions(1))
    assert grade(find([tmp_path / "closed"]), 1).submissions[0].points == 11


class Alarm(BaseException):
    pass


served, go_on = [], threading.Event()


def interrupted(answer: Any) -> None:
    """While another thread serves the answer."""

    def serves() -> None:
        served.append(threading.current_thread())
        go_on.wait(60)

    def ask() -> None:
        with contextlib.suppress(Exception):
            answer(serves)

    threading.Thread(target=ask, daemon=True).start()
    deadline = time.monotonic() + 60
    while not served and time.monotonic() < deadline:
        time.sleep(0.01)
    raise Alarm


def test_a_judge_whose_time_is_over_serves_no_answer_any_more():
    with Servers() as servers:
        answer = RemoteAnswer(servers, [("cell-1", ASKS_ON)], "asks")
        with pytest.raises(Alarm):
            call(answer, through=interrupted)
        go_on.set()
        assert len(served) == 1
        with pytest.raises(Wrong) as wrong:
            call(answer, 1)
        assert wrong.value.got == "the check has already ended"
        answer.close()


BEGINS = """
from dpbook.classroom import exercise
from dpbook.classroom.tasks import notebook_check
exercise(5, globals())

def prepared():
    return len(notebook_check._waiting)
"""


def test_the_setup_cell_of_an_exercise_starts_no_process_for_a_check():
    """Each of 16 ranks runs it, and an answer may have few processes."""
    with Servers() as servers:
        answer = RemoteAnswer(servers, [("cell-1", BEGINS)], "prepared")
        assert call(answer) == 0
        answer.close()


HASHES = "def hashes(word):\n    return hash(word)"


def hashes(seed):
    """The hash of a word in an answer's process, and in one with other hashes."""
    with Servers(other_hashes=True, seed=seed) as servers:
        answer = RemoteAnswer(servers, [("cell-1", HASHES)], "hashes")
        found = [call_each(answer, [("word",)], other_interpreter=other) for other in (False, True)]
        answer.close()
    return found


def test_hashes_follow_from_the_seed_and_differ_in_the_other_interpreter():
    here, elsewhere = hashes(5)
    assert [here, elsewhere] == hashes(5)
    assert here != elsewhere


@pytest.mark.parametrize("name", ["the hash of a string", "the number of the process", "three swaps"])
def test_an_order_that_is_another_one_on_another_rank_is_wrong_here_too(name):
    (mutant,) = [m for m in wrong_answers(3).MUTANTS if (m.task, m.name) == ("03.2", name)]
    with Servers(other_hashes=True) as servers:
        assert not mutant_case(servers, 3, mutant).passed


def test_the_solutions_of_tasks_that_exchange_arrays_earn_all_points():
    """In place, in messages and as results. All other solutions are graded in the proof."""
    graded = grade(find([*EXERCISES.glob("solutions/09_*.ipynb"), *EXERCISES.glob("solutions/14_*.ipynb")]), 17, jobs=2)
    tasks = [task for s in graded.submissions for exercise in s.exercises for task in exercise.tasks]
    assert len(tasks) == 7
    assert [(task.task, str(task.report)) for task in tasks if task.reason] == []


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_every_solution_earns_all_points_and_every_stub_none():
    marks = grade(find([EXERCISES / "solutions"]), 17, jobs=2)
    wrong = [(t.task, str(t.report)) for s in marks.submissions for e in s.exercises for t in e.tasks if t.reason]
    assert wrong == []
    assert [len(each.exercises) for each in marks.submissions] == [len(SOLUTIONS)]
    stubs = grade(find(sorted(EXERCISES.glob("*.ipynb"))), 17, jobs=2)
    assert {t.reason for s in stubs.submissions for e in s.exercises for t in e.tasks} == {"not answered yet"}


def mutant_case(servers, chapter, mutant):
    """Case of the check that catches ``mutant``, judged with the mutant in a process of its own."""
    text = mutants_text(chapter)
    named, asked = (mutant.task, mutant.name), task(mutant.task)
    chosen = f"{asked.answer} = next(m.answer for m in MUTANTS if (m.task, m.name) == {named!r})"
    answer = RemoteAnswer(servers, [("<mutants>", f"{text}\n{chosen}\n")], asked.answer, torch="torch" in text)
    case = judge(asked, answer, 0, {mutant.caught_by}).cases[0]
    answer.close()
    return case


def test_a_generator_that_changes_its_arguments_is_wrong_here_as_in_the_notebook():
    changing = [m for m in wrong_answers(2).MUTANTS if m.name.endswith((" in place", " used up"))]
    assert [m.task for m in changing] == ["02.3", "02.3", "02.4"]
    with Servers() as servers:
        for mutant in changing:
            case = mutant_case(servers, 2, mutant)
            assert (mutant.name, case.passed, "unchanged" in case.expected) == (mutant.name, False, True)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_mutants_are_caught_here_as_in_the_notebook(path):
    chapter = int(path.name[:2])
    with Servers(torch="torch" in mutants_text(chapter), other_hashes=True) as servers:
        for mutant in wrong_answers(chapter).MUTANTS:
            named = (mutant.task, mutant.name)
            case = mutant_case(servers, chapter, mutant)
            assert not case.passed or named in TRAVELS_HERE, named
            assert case.passed or "Error: [Errno" not in case.got, f"{named}: {case.got}"
