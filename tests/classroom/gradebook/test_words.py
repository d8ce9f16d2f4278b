"""Are answers in words read without names, and do the points come back to those who wrote them?"""

import csv
import io
import re
from dataclasses import replace

import pytest

from dpbook.app import main
from dpbook.classroom.gradebook import spreadsheet, words
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, WrittenQuestion
from dpbook.core import DpbookError

RUBRIC = ((1, "names the cost"), (2, "compares"))


def handed(name, answer, chapter=5):
    question = WrittenQuestion(f"words-{chapter:02}-1", "Why a ring?", 3, answer, RUBRIC, text="Two ranks & more.")
    return SubmissionMarks(name, (ExerciseMarks(f"{chapter:02}_x.ipynb", chapter, (), (), (question,)),))


MARKS = Marks((handed("anna", "Because & it is."), handed("bert", ""), handed("caro", "<b>bytes</b>")), 7)


def table(marks):
    text = spreadsheet(marks, "plain")[0].decode("utf-8-sig")
    return {row["Submission"]: row["05 Why a ring?"] for row in csv.DictReader(io.StringIO(text))}


def test_the_page_has_every_answer_and_no_name():
    page = words.sheet(MARKS)
    assert "Because &amp; it is." in page
    assert "&lt;b&gt;bytes&lt;/b&gt;" in page
    assert not re.search("anna|bert|caro", page)
    assert [words.code(name, 7) in page for name in ("anna", "bert", "caro")] == [True, False, True]
    assert "names the cost" in page
    assert page.count("Two ranks &amp; more.") == 1
    assert [question.possible for question in words.questions(MARKS)] == [3]


def test_points_come_back_to_who_wrote_the_answer(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(
        f"question,code,points\nwords-05-1,{words.code('caro', 7)},2\nwords-05-1,{words.code('anna', 7)},\n"
    )
    marks = words.with_points(MARKS, words.read_points(path))
    assert table(MARKS) == {"    Points Possible": "3", "anna": "", "bert": "", "caro": ""}
    assert table(marks) == {"    Points Possible": "3", "anna": "", "bert": "", "caro": "2"}
    assert [each["exercises"][0]["given"] for each in marks.as_json()["submissions"]] == [None, None, 2]


def test_one_submission_takes_its_points_from_the_file_of_the_class():
    given = {("words-05-1", words.code("caro", 7)): 2, ("words-05-1", words.code("anna", 7)): 1}
    caro = replace(MARKS, submissions=tuple(each for each in MARKS.submissions if each.name == "caro"))
    assert words.absent(caro, given) == 1
    assert words.absent(MARKS, given) == 0
    assert words.with_points(caro, given).submissions[0].exercises[0].given == 2


def test_a_code_is_of_one_seed_and_one_name():
    names = [f"student {number}" for number in range(500)]
    assert len({words.code(name, seed) for name in names for seed in (1, 2)}) == 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,who\n", None),
        ("question,who\na,b\n", "needs the columns question, code, points"),
        ("question,code,points\nwords-05-1,ANNA,many\n", "'many' is not a whole number of points"),
        ("question,code,points\nwords-05-1,ANNA,4\n", "has 4, expected 0 to 3"),
        ("question,code,points\nwords-05-1,ANNA,-1\n", "expected 0 to 3"),
        ("question,code,points\nwords-06-1,ANNA,1\n", "no submission with the seed 7 has the code"),
        ("question,code,points\nwords-05-1,00000000,1\n", "give the --seed with which the page was written"),
    ],
)
def test_points_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "points.csv"
    path.write_text(text.replace("ANNA", words.code("anna", 7)))
    if message is None:
        assert words.read_points(path) == {}
        return
    with pytest.raises(DpbookError, match=re.escape(message)):
        words.with_points(MARKS, words.read_points(path))


def test_a_file_that_is_not_there_is_reported_before_anything_is_graded(tmp_path, capsys):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "x.ipynb").write_text("{}")
    assert main(["grade", str(tmp_path / "anna"), "--words", str(tmp_path / "none.csv")]) == 1
    assert "points for words in" in capsys.readouterr().err
