"""Are a reader's points kept, whatever else happens to the file?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpbook.core import checkout
from dpbook.grading import check, progress, task
from dpbook.grading.progress_file import record


@pytest.fixture
def workbook(tmp_path, monkeypatch):
    folder = tmp_path / "workbook"
    (folder / "exercises").mkdir(parents=True)
    monkeypatch.chdir(folder / "exercises")
    return folder


def best():
    return {row[1]: row[2] for row in progress().rows()}


def test_points_are_kept_in_the_workbook(workbook, all_reduce):
    assert check("90.1", all_reduce).notes == ()
    assert json.loads((workbook / "progress.json").read_text())["best"] == {"90.1": 4}
    assert best()["90.1 All-reduce"] == "4"


def test_the_best_result_stays(workbook):
    for points in (3, 1, 4, 0):
        record(task("90.1"), points)
    assert best()["90.1 All-reduce"] == "4"


def test_a_wrong_answer_was_tried_and_a_stub_was_not(workbook):
    check("90.1", 7)
    check("90.2", None)
    assert (best()["90.1 All-reduce"], best()["90.2 Leftover"]) == ("0", "–")


def test_nothing_is_kept_elsewhere(tmp_path, all_reduce):
    check("90.1", all_reduce)
    assert list(tmp_path.iterdir()) == []
    assert best()["90.1 All-reduce"] == "–"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        ("\x00", "is damaged"),
        ("[]", "is no record of progress"),
        ('{"format": "dpbook.progress", "version": 2, "best": {}}', "was written by another version of dpbook"),
        ('{"format": "dpbook.progress", "version": 1, "best": {"90.1": "4"}}', "is damaged"),
        ('{"format": "dpbook.progress", "version": 1}', "is damaged"),
    ],
)
def test_an_unreadable_file_is_moved_aside(workbook, text, said):
    (workbook / "progress.json").write_text(text)
    (workbook / "progress.unreadable-1.json").write_text("an older one")
    assert best()["90.1 All-reduce"] == "–"
    note = f"progress.json {said}; it is now progress.unreadable-2.json, and a new one was begun"
    assert check("90.1", 7).notes == (note,)
    assert (workbook / "progress.unreadable-2.json").read_text() == text
    assert (workbook / "progress.unreadable-1.json").read_text() == "an older one"
    assert check("90.1", 7).notes == ()


def test_bytes_that_are_no_text_are_moved_aside(workbook):
    (workbook / "progress.json").write_bytes(b"\xff\xfe\xff")
    assert "is damaged" in check("90.1", 7).notes[0]


def test_a_folder_in_the_way_is_told(workbook):
    (workbook / "progress.json").mkdir()
    assert check("90.1", 7).notes == ("your points could not be saved: Is a directory",)


def test_points_beyond_what_a_task_is_worth_do_not_count(workbook):
    record(task("90.2"), 100)
    assert best()["90.2 Leftover"] == "1"


def test_the_table(workbook):
    record(task("90.10"), 2)
    lines = repr(progress()).splitlines()
    assert [line.split() for line in lines[-4:-1]] == [
        ["90", "90.1", "All-reduce", "–", "of", "4"],
        ["90", "90.2", "Leftover", "–", "of", "1"],
        ["90", "90.10", "Ring", "2", "of", "3"],
    ]
    assert len(set(map(len, lines[:-1]))) == 1
    assert lines[-1] == f"2 of {progress().possible} points"
    assert "<td" in progress()._repr_html_()


WRITER = """
import sys
from dpbook.grading import Check, Task
from dpbook.grading.progress_file import record
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
