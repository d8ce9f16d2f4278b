"""Has a course numbers of its own, are they judged right, and is none of them one that spoils its task?"""

import json
import re
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest

from dpbook.app import command_line
from dpbook.book.ch05 import broken_ring
from dpbook.classroom import LocalAnswer, begin_course, exercise, judge, task
from dpbook.classroom import check as check_here
from dpbook.classroom.course import of_course, varying, write_course
from dpbook.classroom.tasks.notebook_cells import learners, mark, read, source
from dpbook.collectives import tree
from dpbook.core import DpbookError, checkout
from tests.cases import each

NUMBERS = {one.task: one for one in varying()}


@pytest.fixture(autouse=True)
def the_books_numbers():
    yield
    begin_course(None)


def average(numbers):
    slope, first = numbers
    each = [Fraction(-2 * slope * x * x) for x in range(first, first + 6)]
    return tuple((sum(each[:cut]) / cut + sum(each[cut:]) / (6 - cut)) / 2 for cut in (3, 2))


def two_mistakes(numbers):
    """Rank by rank: of what it reads, the share that nobody has read is new."""
    examples, world, batch = numbers
    step, read_by_all = Fraction(0), Fraction(0)
    for _ in range(world):
        step += batch * (1 - step / examples)
        read_by_all += (1 - read_by_all) / world
    return (batch, round(100 / world)), (round(step), round(100 * read_by_all))


def factors(numbers):
    examples, world, batch, accumulation, length = numbers
    left = ceil(ceil(examples / world) / batch) % accumulation
    return pytest.approx((1 + left / accumulation, world, min(world * length, 1) / length, 1))


def price(numbers):
    world, buffer = numbers
    assert buffer % (4 * world) == 0
    return world, 2 * world - 2


def stored(case):
    """The one message of the ring's first half that is not added."""
    first_half = list(enumerate(broken_ring(case).rounds))[:4]
    (found,) = [(number + 1, m.dest, m.chunk) for number, round_ in first_half for m in round_ if not m.reduce]
    return found


def wired(numbers):
    blocks, wide, narrow, rank, micro, world = numbers
    everything = sum(rows * columns for _ in range(blocks) for rows, columns in ((wide, narrow), (narrow, wide)))
    adapters = sum(rank * (i + o) for _ in range(blocks) for i, o in ((wide, narrow), (narrow, wide)))
    sent = Fraction(2 * (world - 1), world) * 4 * everything
    return 4 * everything, 4 * everything, 2 * everything, 4 * adapters, 4 * adapters * micro, sent


def walls(numbers):
    """They grow with the tokens and the port, and fall with the speed; so from the book's, which was worked out."""
    reached, rate, batch = numbers
    times = 400 / reached * rate / 100 * batch / 512
    return pytest.approx([wall * times for wall in (264, 54, 1050, 4208)], rel=0.01, abs=8)


BY_HAND = {
    "01.1": average,
    "03.3": two_mistakes,
    "04.1": factors,
    "05.2": price,
    "05.5": stored,
    "11.2": wired,
    "13.3": walls,
}


def points(name, answer):
    report = judge(task(name), LocalAnswer(answer))
    return report.points, task(name).points


@each("name", NUMBERS)
def test_every_numbers_that_a_course_may_draw_have_the_answer_by_hand(name):
    numbers = NUMBERS[name]
    drawn = [one for one in numbers.others() if one != numbers.published]
    assert len(drawn) >= 15
    for one in [numbers.published, *(drawn if name != "13.3" else drawn[::8])]:
        answer = numbers.answer(one)
        assert (list(answer) if name == "13.3" else tuple(answer)) == BY_HAND[name](one)
        assert len(set(answer)) > 1
        assert len(set(numbers.phrases(one))) == len(numbers.phrases(numbers.published))


def judged_in(seeds):
    for seed in seeds:
        for name, numbers in NUMBERS.items():
            begin_course(seed)
            answer = numbers.answer(numbers.of(seed))
            got, full = points(name, answer)
            assert got == full, (name, seed)
            for other in (None, seed + 1):
                elsewhere = numbers.answer(numbers.of(other))
                assert (points(name, elsewhere)[0] == full) == (elsewhere == answer), (name, seed, other)


def test_an_answer_is_right_in_its_course_and_wrong_in_others():
    judged_in([2026])


@pytest.mark.proof
def test_so_it_is_in_fifty_courses():
    judged_in(range(50))


def test_courses_differ_and_the_same_seed_does_not():
    drawn = [[numbers.of(seed) for numbers in NUMBERS.values()] for seed in (1, 2, 3)]
    assert all(sum(a == b for a, b in zip(*pair, strict=True)) < 3 for pair in pairwise(drawn))
    assert all(numbers.of(1) != numbers.published for numbers in NUMBERS.values())


def test_the_notebooks_check_is_no_oracle_for_the_numbers_of_a_course():
    numbers, names = NUMBERS["05.2"], {}
    exercise(5, names, course=7)
    right, wrong = (check_here("05.2", numbers.answer(numbers.of(seed))) for seed in (7, 8))
    assert str(right) == str(wrong)
    assert not right.passed
    assert not right.answered
    assert f"checked when the course is graded, 0 of {task('05.2').points} points" in str(right)
    assert check_here("05.3", tree).answered
    exercise(5, names)
    assert check_here("05.2", numbers.answer(numbers.published)).passed


SOLUTIONS = {path.name[:2]: path for path in (checkout.root() / "exercises" / "solutions").glob("*.ipynb")}


@each("chapter", sorted({name[:2] for name in NUMBERS}))
def test_a_notebook_differs_in_the_setup_and_in_the_tasks_that_vary_alone(chapter):
    solution = read(SOLUTIONS[chapter])
    made, again = (of_course(solution, seed, NUMBERS) for seed in (3, 3))
    assert made == again
    heading, changed = "", set()
    for before, after in zip(solution["cells"], made["cells"], strict=True):
        if source(before).startswith("## "):
            heading = source(before)[3:7]
        if before != after:
            changed.add(heading if heading[:1].isdigit() else "setup")
    assert changed == {"setup", *(name for name in NUMBERS if name[:2] == chapter)}
    learner = learners(made, "a")
    assert any(f"exercise({int(chapter)}, globals(), course=3)" in source(cell) for cell in learner["cells"])
    for name in changed - {"setup"}:
        answer = repr(NUMBERS[name].answer(NUMBERS[name].of(3)))
        assert any(answer in source(cell) for cell in made["cells"])
        assert not any(answer in source(cell) for cell in learner["cells"])


@each("name", sorted(NUMBERS))
def test_a_solution_has_the_answer_of_the_course_alone(name):
    made = of_course(read(SOLUTIONS[name[:2]]), 3, NUMBERS)
    (answer,) = (source(cell) for cell in made["cells"] if mark(cell).get("grade_id") == task(name).answer_cell)
    assert len(re.findall(rf"^{task(name).answer} = ", answer, re.MULTILINE)) == 1


def test_no_picture_of_the_books_fault_is_left_in_a_course():
    made = learners(of_course(read(SOLUTIONS["05"]), 3, NUMBERS), "a")
    shown = [cell for cell in made["cells"] if "figures.play(broken)" in source(cell)]
    assert [cell["outputs"] for cell in shown] == [[]]


@each("name", sorted(NUMBERS))
def test_what_helps_with_a_task_names_none_of_the_books_numbers(name):
    texts = [*task(name).hints, *(check.why for check in task(name).checks)]
    assert not [text for text in texts if re.search(r"\b\d[\d,]+\b", text)]


def test_a_text_without_its_numbers_is_refused():
    solution = json.loads(json.dumps(read(SOLUTIONS["05"])).replace("480,000,000", "480 million"))
    with pytest.raises(DpbookError, match=r"05\.2.*480,000,000 bytes sent"):
        of_course(solution, 3, NUMBERS)


@pytest.mark.processes
def test_what_a_course_hands_in_is_graded_by_its_numbers(tmp_path, capsys):
    assert command_line.main(["course", "7", "--to", str(tmp_path / "course")]) == 0
    assert command_line.main(["course", "7", "--to", str(tmp_path / "course")]) == 1
    handed_in = tmp_path / "course_solutions" / next(iter((tmp_path / "course").glob("05_*"))).name
    grade = ["grade", str(handed_in), "--seed", "1", "--jobs", "1", "--strict"]
    capsys.readouterr()
    assert command_line.main([*grade, "--course", "7"]) == 0
    assert capsys.readouterr().out.endswith("\nseed 1, course 7\n")
    assert command_line.main(grade) == 1
    assert "has the numbers of course 7, but was graded with those of the book" in capsys.readouterr().out


def test_the_folder_of_a_course_holds_all_exercises_and_solutions(tmp_path):
    names = sorted(path.name for path in SOLUTIONS.values())
    write_course(5, tmp_path / "course", tmp_path / "teachers")
    for folder in ("course", "teachers"):
        assert sorted(path.name for path in (tmp_path / folder).rglob("*")) == names


def test_solutions_are_not_written_into_the_folder_to_hand_out(tmp_path):
    for places in ((tmp_path, tmp_path / "solutions"), (tmp_path / "course", tmp_path)):
        with pytest.raises(DpbookError, match="must not contain each other"):
            write_course(5, *places)
    assert list(tmp_path.iterdir()) == []
