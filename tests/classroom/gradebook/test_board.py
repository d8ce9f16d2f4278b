"""Does the board rank what was reached, under pseudonyms, with the schedules that were handed in?"""

import re
from dataclasses import dataclass, replace

from dpbook.app.command_line import main
from dpbook.classroom.gradebook import board, pages
from dpbook.classroom.gradebook.words import code
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.classroom.tasks.report import Case, ParResult, Report
from dpbook.collectives import EvenSplit, halving_doubling, ring
from tests.classroom.submissions import hand_in, solutions


def handed(name, value, schedule=None, passed=True):
    reached = ParResult(value, 6, "round(s)")
    reached = reached.with_schedule(schedule) if schedule else reached
    case = Case("few rounds", 2, passed, note=str(reached), reached=reached if passed else None)
    task = TaskMarks("05.3", "A schedule", 2, Report("05.3", "A schedule", (case,)))
    return SubmissionMarks(name, (ExerciseMarks("05_all_reduce.ipynb", 5, (task,)),))


CLASS = Marks(
    (
        handed("anna", 6, ring(4)),
        handed("bert", 4, halving_doubling(4)),
        handed("caro", 6, ring(4).named("caro's own")),
        handed("dora", 9, passed=False),
    ),
    7,
)


def test_equal_values_share_a_place_and_who_did_not_pass_has_none():
    (contest,) = board.contests(CLASS)
    assert (contest.task, contest.check, contest.par) == ("05.3", "few rounds", "6")
    assert [(place, reached.value, codes) for place, reached, codes in contest.places] == [
        (1, 4, [code("bert", 7)]),
        (2, 6, sorted([code("anna", 7), code("caro", 7)])),
    ]


def test_schedules_that_differ_in_their_names_alone_are_one_player():
    (contest,) = board.contests(CLASS)
    assert [codes for _, codes in contest.schedules] == [
        [code("bert", 7)],
        sorted([code("anna", 7), code("caro", 7)]),
    ]
    assert all("dpbook-film" in player for player, _ in contest.schedules)


def test_the_page_names_nobody_and_a_students_page_has_the_code():
    page = board.page(CLASS)
    assert not re.search("anna|bert|caro|dora", page)
    assert [code(each.name, 7) in page for each in CLASS.submissions] == [True, True, True, False]
    assert code("anna", 7) in pages.learner(CLASS.submissions[0], 7)


def test_a_class_that_passed_nothing_has_a_board_that_says_so():
    assert "Nobody has passed" in board.page(Marks((handed("dora", 9, passed=False),), 7))


def test_a_schedule_with_bounds_of_its_own_counts_without_a_player():
    @dataclass(frozen=True)
    class OtherSplit(EvenSplit):
        pass

    odd = replace(ring(4), bounds=OtherSplit(4))
    assert ParResult(1, 1, "round(s)").with_schedule(odd).schedule == ""


def test_answers_are_ranked_by_what_the_judge_measured(tmp_path):
    for name in ("anna", "bert"):
        hand_in(tmp_path / "class" / name / "05_all_reduce.ipynb", 5, {"3": solutions(5)["3"]})
    command = ["grade", str(tmp_path / "class"), "--seed", "7", "--board", str(tmp_path / "board.html")]
    assert main(command) == 0
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert "4 buffers sent or received by one rank for 16 ranks" in page
    assert page.count("<details>") == 1  # both handed in the same schedule
    assert main(command) == 1  # nothing is replaced
