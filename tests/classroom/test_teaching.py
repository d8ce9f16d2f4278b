"""The class kit, docs/teaching: does it say what the book says?"""

import re
from collections import Counter
from functools import cache

import pytest

from dpbook.book.sim import missing
from dpbook.classroom import LocalAnswer, list_tasks, task, varying
from dpbook.classroom.tasks.notebook_cells import mark, read, source
from dpbook.core import checkout
from tests.cases import each
from tests.classroom import teaching
from tests.classroom.mutants.edits import answers, reference

PAGES = sorted(teaching.PLACE.glob("*.md"))
all_wrong_answers = pytest.mark.skipif(missing() is not None, reason=f"a wrong answer of 11.1 is left out: {missing()}")


@all_wrong_answers
def test_the_pages_that_are_made_from_the_book_are_those_made_now():
    stale = [path.name for path, text in teaching.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "python -m tests.classroom.teaching writes them"


def test_every_objective_is_read_with_the_tasks_that_ask_for_it():
    opening = (
        "# 05 · Title\n\nAfter this chapter you can\n\n1. do this, or that (exercise 05.1),\n"
        "2. tell *two* apart (exercises 05.2 and 05.3), and\n"
        "3. write (exercise 05.4), and name it (exercise 05, in words),\n"
        "4. train.\n\n*Time: about 3. hours*"
    )
    assert teaching.objectives(opening) == [
        teaching.Objective("do this, or that", ("05.1",)),
        teaching.Objective("tell *two* apart", ("05.2", "05.3")),
        teaching.Objective("write, and name it", ("05.4", "in words")),
        teaching.Objective("train", ()),
    ]


def test_an_objective_leads_to_a_task_that_there_is_and_each_task_serves_one():
    asked = {place for unit in teaching.units() for one in unit.objectives for place in one.places} - {"in words"}
    assert asked == {task.id for task in list_tasks() if task.chapter not in (0, 90)}
    in_words = [unit for unit in teaching.units() if any("in words" in one.places for one in unit.objectives)]
    assert [unit.number for unit in in_words if not unit.words] == []


def test_every_objective_of_a_chapter_with_an_exercise_is_measured():
    """A notebook beside a chapter has no exercise, and its objectives may have no task."""
    open_ones = [(unit.label, one.text) for unit in teaching.units() for one in unit.objectives if not one.places]
    assert [label for label, _ in open_ones if label != "00" and label[-1].isdigit()] == []


def lines_of_reference(id):
    """The number of lines of a solution that do something."""
    body = reference(id)[2].split("### BEGIN SOLUTION\n")[1].split("### END SOLUTION")[0]
    return len([line for line in body.splitlines() if line.strip() and not line.strip().startswith("#")])


def test_points_follow_the_length_of_the_solution():
    """One line earns at most 3 points, and twelve lines or more earn at least 4."""
    asked = [each for each in list_tasks() if each.chapter not in (0, 90)]
    sizes = {each.id: (lines_of_reference(each.id), each.points) for each in asked}
    assert [
        id for id, (lines, points) in sizes.items() if (points > 3 if lines == 1 else lines >= 12 and points < 4)
    ] == []


@all_wrong_answers
def test_every_wrong_answer_is_in_the_table_once():
    """A task's rows have as many names as the task has mutants."""
    listed, id = Counter(), ""
    for row in (teaching.PLACE / "tasks.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != 5 or cells[3] == "a person":
            id = ""
        elif re.match(r"\d\d\.\d ", cells[0]):
            id = cells[0][:4]
        if id:
            listed[id] += cells[4].count("; ") + 1 if cells[4] != "–" else 0
    written = Counter(
        one.task for unit in teaching.units() if unit.tasks for one in teaching.wrong_answers(unit.number)
    )
    assert +listed == written


def test_the_time_that_the_syllabus_adds_up_is_the_one_that_chapters_print():
    printed = 0
    for path in sorted((checkout.root() / "chapters").glob("*.ipynb")):
        printed += int(re.search(r"\*Time: about (\d+) minutes", teaching.opening_of(path))[1])
    assert sum(unit.minutes for unit in teaching.units()) == printed


@each("unit", lambda: [unit for unit in teaching.units() if unit.words])
def test_a_question_in_words_has_three_answers_with_marks(unit):
    page = (teaching.PLACE / "rubrics.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {unit.number:02}\n")[1].split("\n## ")[0]
    (question,) = unit.words
    given = re.findall(r"\*\*(Good|Middling|Poor): (\d) of (\d)\.\*\*", section)
    assert [name for name, *_ in given] == ["Good", "Middling", "Poor"]
    assert {int(of) for *_, of in given} == {question.possible}
    points = [int(got) for _, got, _ in given]
    assert points == sorted(set(points), reverse=True)
    assert points[0] == question.possible
    reasons = re.findall(r"^\*(\d(?: \+ \d)+)[:.]", section, re.MULTILINE)
    most = [points for points, _ in question.rubric]
    for total, reason in zip(points, reasons, strict=True):
        parts = [int(part) for part in reason.split(" + ")]
        assert sum(parts) == total
        assert [part <= of for part, of in zip(parts, most, strict=True)] == [True] * len(most)


def unseeded():
    """The tasks that variants.md lists as asking for a value."""
    page = (teaching.PLACE / "variants.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (\d\d\.\d) \|", page, re.MULTILINE)


def test_the_tasks_that_are_said_to_ask_for_a_value_are_those_without_a_function():
    values = [
        asked.id
        for path in sorted((checkout.root() / "exercises").glob("*.ipynb"))
        for asked in list_tasks(int(path.name[:2]))
        for cell in read(path)["cells"]
        if mark(cell).get("grade_id") == asked.answer_cell
        and not re.search(r"^(def|class) ", source(cell), re.MULTILINE)
    ]
    assert unseeded() == values


def test_the_tasks_that_are_said_to_vary_with_a_course_are_those_that_have_numbers():
    page = (teaching.PLACE / "variants.md").read_text(encoding="utf-8")
    ids = re.findall(r"^\| (\d\d\.\d) \|.*\| (?!nothing)[^|]+ \|$", page, re.MULTILINE)
    assert ids == [numbers.task for numbers in varying()]


@each("id", lambda: [*unseeded(), "05.3", "05.4"])
def test_where_no_seed_changes_anything_nothing_is_drawn(id):
    """Without a generator the check still judges."""
    (solution,) = (checkout.root() / "exercises" / "solutions").glob(f"{id[:2]}_*.ipynb")
    reference = references(solution)[id]
    for check in task(id).checks:
        check.run(LocalAnswer(reference), None)


@cache
def references(solution):
    return answers(read(solution))


def test_the_longer_course_goes_through_the_whole_book_and_the_shorter_one_names_what_it_leaves_out():
    short, whole = ([label for week in plan for label in week] for plan in teaching.plans())
    assert whole == [unit.label for unit in teaching.units()]
    rest = [label for label in whole if label not in short]
    assert f"| left out | {', '.join(rest)} |" in teaching.pages()[teaching.PLACE / "syllabus.md"]


@each("page", PAGES)
def test_a_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).is_file()] == []


def test_the_readme_leads_to_every_page():
    readme = (teaching.PLACE / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in readme] == []
