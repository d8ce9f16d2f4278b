"""Does a check say what is wrong when its answer's cell was not run?"""

import pytest

from dpbook.classroom import check, exercise
from dpbook.core import DpbookError


@pytest.fixture
def names():
    """Namespace of a notebook after its setup cell."""
    names = {"kept": 1}
    exercise(90, names)
    return names


def test_an_answer_that_was_not_run_is_no_error_and_no_answer(names):
    report = check("90.1", names["all_reduce"])
    assert (report.answered, report.points) == (False, 0)
    assert repr(report) == (
        "90.1 All-reduce: not answered yet, 0 of 4 points\n  run the cell with your answer first, then this one again"
    )


def test_every_answer_of_the_chapter_has_a_stand_in_and_nothing_else(names):
    assert set(names) == {"kept", "all_reduce", "prediction", "build"}
    assert names["kept"] == 1


def test_answers_stay_when_the_setup_runs_again(names, all_reduce):
    names["all_reduce"] = all_reduce
    exercise(90, names)
    assert names["all_reduce"] is all_reduce


@pytest.mark.parametrize("use", [lambda name: name(4), lambda name: name[0], lambda name: [*name]])
def test_another_cell_that_uses_it_says_so_too(names, use):
    with pytest.raises(DpbookError, match="all_reduce is not there yet: run the cell with your answer first"):
        use(names["all_reduce"])
