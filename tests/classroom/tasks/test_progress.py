"""Are a reader's points kept, whatever else happens to the file?"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpbook.classroom import check, list_tasks, progress, task
from dpbook.classroom.tasks.reader_progress import record
from dpbook.core import checkout


@pytest.fixture
def workbook(tmp_path, monkeypatch):
    folder = tmp_path / "workbook"
    (folder / "exercises").mkdir(parents=True)
    monkeypatch.chdir(folder / "exercises")
    return folder


def best():
    """The best points of every task."""
    return {task.id: best for s in progress().stretches for task, best in zip(s.tasks, s.best, strict=True)}


def test_points_are_kept_in_the_workbook(workbook, all_reduce):
    assert check("90.1", all_reduce).notes == ()
    assert json.loads((workbook / "progress.json").read_text())["best"] == {"90.1": 4}
    assert best()["90.1"] == 4


def test_the_best_result_stays(workbook):
    for points in (3, 1, 4, 0):
        record(task("90.1"), points)
    assert best()["90.1"] == 4


def test_a_wrong_answer_was_tried_and_a_stub_was_not(workbook):
    check("90.1", 7)
    check("90.2", None)
    assert (best()["90.1"], best()["90.2"]) == (0, None)


def test_nothing_is_kept_elsewhere(tmp_path, all_reduce):
    check("90.1", all_reduce)
    assert list(tmp_path.iterdir()) == []
    assert best()["90.1"] is None


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\x00",
        b"\xff\xfe\xff",
        b"[]",
        b'{"format": "dpbook.progress", "version": 2, "best": {}}',
        b'{"format": "dpbook.progress", "version": 1, "best": {"90.1": "4"}}',
        b'{"format": "dpbook.progress", "version": 1}',
    ],
)
def test_an_unreadable_file_is_moved_aside(workbook, content):
    (workbook / "progress.json").write_bytes(content)
    (workbook / "progress.unreadable-1.json").write_text("an older one")
    assert best()["90.1"] is None
    note = "progress.json is damaged or from another version; renamed to progress.unreadable-2.json, started a new one"
    assert check("90.1", 7).notes == (note,)
    assert (workbook / "progress.unreadable-2.json").read_bytes() == content
    assert (workbook / "progress.unreadable-1.json").read_text() == "an older one"
    assert check("90.1", 7).notes == ()


def test_a_folder_in_the_way_is_reported(workbook):
    (workbook / "progress.json").mkdir()
    assert check("90.1", 7).notes == ("cannot save your points: Is a directory",)


def test_points_beyond_what_a_task_is_worth_do_not_count(workbook):
    record(task("90.2"), 100)
    assert best()["90.2"] == 1


def test_the_map_has_a_bar_for_each_chapter_and_a_sum(workbook):
    record(task("90.10"), 2)
    *lines, total = repr(progress()).splitlines()
    assert [line.split()[0] for line in lines] == [c.label for c in checkout.chapters()] + ["90"]
    assert len({line.index("░") for line in lines[:-1] if "░" in line}) == 1
    assert [line.split() for line in lines if "no exercise" in line] == [
        ["04b", "The", "critical", "batch", "size", "no", "exercise"],
        ["06b", "A", "real", "cluster", "no", "exercise"],
        ["12b", "A", "GPU's", "clock", "no", "exercise"],
    ]
    of_01 = str(sum(t.points for t in list_tasks(1)))
    assert lines[1].split() == ["01", *checkout.chapters()[1].title.split(), "░" * 20, "0", "of", of_01, "open"]
    assert lines[-1].split() == ["90", "█" * 5 + "░" * 15, "2", "of", "8", "begun"]  # a quarter
    points, chapters = sum(t.points for t in list_tasks()), len(lines) - 3  # 04b, 06b and 12b have no exercise
    assert total == f"2 of {points} points; 0 of {chapters} chapters done"


def test_a_chapter_is_done_with_its_last_point(workbook):
    for name, points in (("90.1", 4), ("90.2", 1), ("90.10", 2)):
        record(task(name), points)
    assert progress().stretches[-1].state == "begun"
    record(task("90.10"), 3)
    assert progress().stretches[-1].state == "done"
    assert f"1 of {len(progress().stretches) - 3} chapters done" in repr(progress())  # three have none to do


def test_what_was_tried_without_a_point_is_begun(workbook):
    assert progress().stretches[-1].state == "open"
    check("90.1", 7)
    assert progress().stretches[-1].state == "begun"


def test_the_links_lead_to_chapters_and_exercises_from_either_folder(workbook):
    page = progress()._repr_html_()
    links = re.findall(r'<a href="([^"]+)">(\d\d[b-z]?|exercises \d\d)', page)
    for folder in ("chapters", "exercises"):
        assert all((checkout.root() / folder / link).is_file() for link, _ in links)
    chapters = checkout.chapters()
    with_exercise = [c.label for c in chapters if c.number > 0 and not c.is_optional]
    assert [name for link, name in links if "/chapters/" in link] == [c.label for c in chapters]
    assert [name for link, name in links if "/exercises/" in link] == [f"exercises {label}" for label in with_exercise]


def test_the_bars_are_as_long_as_the_share_of_points_and_no_script_is_needed(workbook):
    record(task("90.10"), 2)
    page = progress()._repr_html_()
    graded = [chapter for chapter in checkout.chapters() if not chapter.is_optional]
    assert re.findall(r"width: (\d+)%", page) == ["0"] * len(graded) + ["25"]
    assert "90.10 Ring: 2 of 3" in page
    assert "90.2 Leftover: – of 1" in page
    assert "<script" not in page


WRITER = """
import sys
from dpbook.classroom import Check, Task
from dpbook.classroom.tasks.reader_progress import record
first = int(sys.argv[1])
for number in range(first, first + 40):
    record(Task(f"90.{number}", "title", "name", [Check("check", 1, "why", print)]), number)
"""


@pytest.mark.processes
def test_two_kernels_lose_nothing(workbook):
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(first)], cwd=Path.cwd(), env=env) for first in (1, 101)
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    numbers = [*range(1, 41), *range(101, 141)]
    assert json.loads((workbook / "progress.json").read_text())["best"] == {f"90.{n}": n for n in numbers}
