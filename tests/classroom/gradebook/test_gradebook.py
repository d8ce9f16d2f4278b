"""Do reports of marks say what the marks say, in forms that a gradebook reads, whatever a submission is called?"""

import csv
import io
import json
import zipfile
from html.parser import HTMLParser

import pytest

from dpbook.app import command_line
from dpbook.classroom.gradebook import Roster, pages, read, results, spreadsheet
from dpbook.classroom.gradebook.gradebook import sort_key
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks, WrittenQuestion
from dpbook.classroom.marks.submitted_notebook import read_exercise
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import DpbookError, checkout
from tests.cases import each
from tests.classroom.submissions import cell, exercise, hand_in

CANVAS = "Student,ID,SIS User ID,SIS Login ID,Section"
TASKS = ["01.1 First", "01.2 Second", "01 In words: why?"]
WORDS = WrittenQuestion("words-01-1", "In words: why?", 2, "I <b>think</b>\nso", ((1, "a cause"), (1, "a test")))


def submission(name, first=2, second=0):
    cases = (Case("easy", 2, first == 2), Case("hard", 1, False, expected="4 < 5", got="<script>", why="a & b"))
    tasks = (
        TaskMarks("01.1", "First", 3, Report("01.1", "First", cases), ("a remark",)),
        TaskMarks("01.2", "Second", 4, Report("01.2", "Second", (Case("all", 4, second == 4),)) if second else None),
    )
    graded = ExerciseMarks("01.ipynb", 1, tasks, ("another edition",), (WORDS,))
    return SubmissionMarks(name, (graded, ExerciseMarks("2.ipynb", None, (), ("not graded",))), ("x.pdf left out",))


def marks(*names):
    return Marks(tuple(submission(name) for name in names), 77)


def roster(tmp_path, text):
    (tmp_path / "roster.csv").write_text(text, encoding="utf-8")
    return read(tmp_path / "roster.csv")


def lines(content):
    return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))


def test_canvas_finds_its_columns_its_line_of_possible_points_and_each_students_points(tmp_path):
    """Columns as `lib/gradebook_importer.rb` of Canvas reads them: Section ends the learner's, tasks follow."""
    known = roster(tmp_path, f'{CANVAS},Old (3)\n    Points Possible,,,,,5\n"Berg, Anna",17,s1,anna@u.example,A,4\n')
    content, remarks = spreadsheet(marks("anna"), "canvas", known)
    head, possible, anna = lines(content)
    assert (head, remarks) == ([*CANVAS.split(","), *TASKS], [])
    assert (possible[0].strip(), possible[5:]) == ("Points Possible", ["3", "4", "2"])
    assert anna == ["Berg, Anna", "17", "s1", "anna@u.example", "A", "2", "0", ""]
    assert lines(spreadsheet(marks("anna"), "canvas")[0])[2][:5] == ["anna", "", "", "anna", ""]


def test_different_exercises_of_one_student_have_one_row(tmp_path):
    """An empty cell erases a grade, and rows of their own would erase one another's."""
    known = roster(tmp_path, f"{CANVAS}\nBerg,17,s1,anna,A\n")
    other = ExerciseMarks("02.ipynb", 2, (TaskMarks("02.1", "Other", 5, None),))
    handed = submission("annaberg_17_1_loop"), SubmissionMarks("annaberg_17_2_exactness", (other,))
    content, remarks = spreadsheet(Marks(handed, 7), "canvas", known)
    assert [row[1:2] + row[5:] for row in lines(content)[2:]] == [["17", "2", "0", "", "0"]]
    assert remarks == ["1 student with several submissions, of different exercises: one row each"]


def test_moodle_gets_the_rosters_columns_that_it_knows(tmp_path):
    known = roster(tmp_path, "First name;Last name;ID number;Email address;Groups\nAnna;Berg;0017;a@u.example;x\n")
    head, anna = lines(spreadsheet(marks("Anna Berg_4711_assignsubmission_file_"), "moodle", known)[0])
    assert head == ["First name", "Last name", "ID number", "Email address", *TASKS]
    assert anna == ["Anna", "Berg", "0017", "a@u.example", "2", "0", ""]
    assert lines(spreadsheet(marks("anna"), "moodle")[0])[1][:2] == ["anna", "2"]


def test_what_nobody_handed_in_or_that_was_not_graded_is_empty_and_not_0():
    nothing = SubmissionMarks("berta", (ExerciseMarks("01.ipynb", None, (), ("not graded",)),))
    content, _ = spreadsheet(Marks((submission("anna"), nothing), 7), "plain")
    assert lines(content)[3] == ["berta", "0", "", "", ""]


def test_tasks_stand_in_the_books_order():
    def only(chapter, *numbers):
        tasks = tuple(TaskMarks(f"{chapter:02}.{n}", "T", 1, None) for n in numbers)
        return SubmissionMarks("x", (ExerciseMarks("f", chapter, tasks, (), (WORDS,)),))

    content, _ = spreadsheet(Marks((only(11, 1), only(2, 10, 9)), 7), "plain")
    assert [title[:4] for title in lines(content)[0][2:]] == ["02.9", "02.1", "02 I", "11.1", "11 I"]


NAMES = [
    "=1+1",
    "+1",
    "-1",
    "@x",
    " =1",
    "\t=1",
    "\n=1",
    "|x",
    "Müller, 明",
    'a"b',
    "two\nlines",
    "a;b",
    "x\r\ny",
    "'q",
]


@each(["form", "name"], [("plain", 0), ("canvas", 0), ("canvas", 3), ("moodle", 0)])
def test_a_name_is_a_name_and_never_a_formula(form, name):
    rows = lines(spreadsheet(marks(*NAMES), form)[0])
    written = [row[name] for row in rows[1 if form == "moodle" else 2 :]]
    in_order = sorted(NAMES, key=sort_key)
    assert [
        text.removeprefix("'") if name != "'q" else text for name, text in zip(in_order, written, strict=True)
    ] == in_order
    assert [text for text in written if text.strip()[0] in "=+-@|"] == []


def test_no_submission_is_canvas_line_of_possible_points_and_no_name_stops_the_file():
    rows = lines(spreadsheet(marks("    Points Possible", "\udcff"), "canvas")[0])
    assert len(rows) == 4
    assert ["Points Possible" in row[0] for row in rows] == [False, True, False, False]


@each(
    ["name", "id"],
    [
        ("anna", "1"), ("ANNA", "1"), ("01_anna", "1"), ("anna (2)", "1"), ("bo@u.example", "2"), ("bo", "2"),
        ("müller", "3"), ("Clara Müller", "3"), ("Müller, Clara", "3"),
        ("mu\u0308ller", "3"), ("s3", "3"), ("2", "2"), ("bobo_LATE_2_991_01_loop", "2"),
        ("mullerclara_3_992_01_loop", "3"), ("Bo Li_88_assignsubmission_file_", "2"), ("zoe", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_submission_is_its_students_by_any_of_their_names(name, id, tmp_path):
    known = roster(
        tmp_path,
        f'\ufeff{CANVAS}\nAnna,1,s1,anna,A\nBo Li,2,s2,bo@u.example,A\n,,,,\n"Müller, Clara",3,s3, Müller ,B\n',
    )
    (row,), remarks = known.match([name])
    assert (row["ID"] if row else "") == id
    assert any("no student on the roster" in line for line in remarks) == (not id)


def test_whoever_is_unknown_ambiguous_twice_or_absent_is_reported_and_keeps_a_row(tmp_path):
    known = roster(tmp_path, f"{CANVAS}\nAnna,1,s1,anna,A\nTwin,2,s2,t2,A\nTwin,3,s3,t3,A\nEva,4,s4,eva,A\n")
    content, remarks = spreadsheet(marks("anna", "01_anna", "twin", "zoe"), "canvas", known)
    assert [row[:2] for row in lines(content)[2:]] == [["Anna", "1"], ["Anna", "1"], ["twin", ""], ["zoe", ""]]
    twin, zoe, twice, absent = sorted(remarks)
    assert twin.startswith("'anna' and '01_anna' belong to one student")
    assert zoe.startswith("'twin' may be any of 2")
    assert twice.startswith("'zoe' matches no student")
    assert absent.endswith("Twin; Twin; Eva")


@each("text", ["", "Colour,Size\nred,3\n", "\n"])
def test_a_file_that_names_nobody_is_no_roster(text, tmp_path):
    with pytest.raises(DpbookError, match="no column of identifiers"):
        roster(tmp_path, text)


def test_a_roster_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "roster.csv").write_bytes("Student\nMüller".encode("latin-1"))
    with pytest.raises(DpbookError, match="UTF-8"):
        read(tmp_path / "roster.csv")


def test_gradescope_gets_a_test_for_each_task_and_what_was_left_out():
    message = json.loads(json.dumps(results(Marks((submission("anna", second=4),), 7))))
    assert [(t["name"], t["score"], t["max_score"], t["status"], t["visibility"]) for t in message["tests"]] == [
        ("First", 2, 3, "failed", "visible"), ("Second", 4, 4, "passed", "visible"),
    ]  # fmt: skip
    assert message["score"] == 6
    assert "4 < 5" in message["tests"][0]["output"]
    assert "a remark" in message["tests"][0]["output"]
    assert all(text in message["output"] for text in ("x.pdf left out", "2.ipynb: not graded", "In words: why?"))
    with pytest.raises(DpbookError, match="exactly one submission, got 2"):
        results(marks("anna", "berta"))


class Page(HTMLParser):
    """Text, tags and links of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.links, self.text, self.fields = set(), [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        self.fields += [(dict(attrs)["max"], dict(attrs).get("step", "1"))] if tag == "input" else []

    def handle_data(self, data):
        self.text += data


def test_a_learners_page_says_what_came_and_why_and_runs_and_loads_nothing():
    page = Page(pages.learner(submission("<i>anna</i>"), 1))
    assert page.tags & {"script", "i", "img", "iframe", "link"} == set()
    assert page.links == []
    for text in (
        "<i>anna</i>: 2 of 7 points", "4 < 5", "<script>", "a & b", "01.2 Second: 0 of 4 points", "not graded",
        "a remark", "another edition", "x.pdf left out", "I <b>think</b>\nso", "a cause", "a test",
    ):  # fmt: skip
        assert text in page.text, text
    assert page.fields == []
    assert "77" not in page.text


def test_the_class_page_leads_to_every_page_and_begins_with_the_hardest_task(tmp_path):
    strong = submission("<i>bo</i>/../x", second=4)
    written = pages.write(Marks((submission("anna"), strong, submission("anna")), 77), tmp_path)
    assert {path.parent for path in written} == {tmp_path}
    assert len({path.name for path in written}) == 4
    page = Page((tmp_path / "class.html").read_text(encoding="utf-8"))
    by_name = [written[place].name for place in (1, 0, 2)]
    assert page.links[:3] == by_name
    without_all_points = [written[place].name for place in (0, 2)], by_name  # of 01.2, the harder one, and of 01.1
    assert page.links[3:] == [*without_all_points[0], *without_all_points[1]]
    assert "i" not in page.tags
    assert all(text in page.text for text in ("a remark", "another edition", "not graded", "x.pdf left out"))
    order = page.text.partition("hardest first")[2]
    assert order.index("01.2 Second") < order.index("01.1 First")  # a mean of 4/3 of 4, and of 2 of 3
    assert "1.3 of 4" in order
    assert "hard (by 3)" in order
    assert "anna" not in (tmp_path / written[1].name).read_text(encoding="utf-8")


MIXED = ("Yıldız", "Öst", "oslo", "Zoë", "Anna")


def test_names_are_sorted_as_a_reader_expects():
    content, _ = spreadsheet(marks(*MIXED), "plain")
    assert [row[0] for row in lines(content)[2:]] == ["Anna", "oslo", "Öst", "Yıldız", "Zoë"]
    page = pages.whole_class(marks(*MIXED), [f"{name}.html" for name in MIXED])
    assert sorted(MIXED, key=lambda name: page.index(f">{name}</a>")) == ["Anna", "oslo", "Öst", "Yıldız", "Zoë"]


def test_no_control_character_reaches_a_file():
    content, _ = spreadsheet(marks("an\x1b[31mna"), "plain")
    assert b"\x1b" not in content


def test_names_that_only_look_the_same_are_reported():
    page = pages.whole_class(marks("Jos\u00e9", "Jose\u0301", "Ann"), ["1.html", "2.html", "3.html"])
    assert page.count("another submission has this name") == 2


def test_an_answer_that_tried_to_break_out_is_reported():
    case = Case("easy", 2, False, got="PermissionError: [Errno 13] Permission denied: '/etc/passwd'")
    tasks = (TaskMarks("01.1", "First", 2, Report("01.1", "First", (case, case))),)
    one = SubmissionMarks("eve", (ExerciseMarks("01.ipynb", 1, tasks),))
    page = pages.whole_class(Marks((one, submission("anna")), 1), ["1.html", "2.html"])
    assert page.count("it tried a forbidden operation") == 1
    assert "/etc/passwd" in page


def test_an_answer_that_is_not_python_is_reported():
    case = Case("easy", 2, False, got="IndentationError: unexpected indent (<answer-01-1>, line 3)")
    tasks = (TaskMarks("01.1", "First", 2, Report("01.1", "First", (case, case))),)
    one = SubmissionMarks("eve", (ExerciseMarks("01.ipynb", 1, tasks),))
    page = pages.whole_class(Marks((one, submission("anna")), 1), ["1.html", "2.html"])
    assert page.count("it is not valid Python: IndentationError") == 1


def test_the_total_has_possible_points_too():
    """Words are in no total: a person marks them."""
    head, possible, anna = lines(spreadsheet(marks("anna"), "plain")[0])
    total = head.index("Total")
    assert (possible[total], anna[total]) == ("7", "2")


def test_a_rubric_gives_the_points_that_the_learner_is_promised():
    asked = {}
    for chapter in range(1, 17):
        for each_cell in exercise(chapter)["cells"]:
            marked = each_cell["metadata"].get("nbgrader", {})
            if marked.get("grade_id", "").startswith("words-"):
                asked[chapter] = (marked["grade_id"], marked["points"])
    found = {
        chapter: read_exercise(next((checkout.root() / "exercises").glob(f"{chapter:02}_*.ipynb"))).words
        for chapter in asked
    }
    assert len(asked) >= 8
    assert {
        chapter: (words.id, sum(points for points, _ in words.rubric)) for chapter, (words,) in found.items()
    } == asked
    assert {words.answer for (words,) in found.values()} == {""}
    assert all(earns for (words,) in found.values() for _, earns in words.rubric)


def test_an_answer_in_words_is_shown_with_its_marks(tmp_path):
    def write(nb):
        cell(nb, "words-02-1")["source"] = ["Equal is\n", "not exact."]

    (words,) = read_exercise(hand_in(tmp_path / "02.ipynb", 2, {}, change=write)).words
    assert (words.title, words.possible, words.answer) == ("In words: is this run exact?", 3, "Equal is\nnot exact.")


@each(
    ["options", "message"],
    [
        (["--csv", "there.csv"], "there.csv already exists and is not overwritten"),
        (["--gradescope", "there.csv"], "there.csv already exists"),
        (["--html", "full"], "full already exists"),
        (["--html", "there.csv"], "there.csv already exists"),
        (["--csv", "new", "--html", "new"], "two reports have the same file name"),
        (["--format", "canvas"], "need --csv FILE"),
        (["--csv", "new.csv", "--roster", "none.csv"], "cannot read the roster none.csv"),
    ],
)
def test_what_cannot_be_written_is_reported_before_anything_is_graded(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpbook.classroom.marks.grade", lambda *args, **more: pytest.fail("graded"))
    hand_in(tmp_path / "full" / "01.ipynb", 1, {})
    (tmp_path / "there.csv").write_text("mine")
    assert command_line.main(["grade", "full", *options]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_report_that_cannot_be_written_is_reported_after_the_marks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dpbook.classroom.marks.grade", lambda *a, **more: marks("anna"))
    hand_in(tmp_path / "01.ipynb", 1, {})
    assert command_line.main(["grade", str(tmp_path), "--csv", str(tmp_path / "01.ipynb" / "x.csv")]) == 1
    message = capsys.readouterr()
    assert "anna: 2 of 7 points" in message.out
    assert "a report cannot be written" in message.err


@each(
    ["broken", "status", "message"],
    [(BrokenPipeError(32, "Broken pipe"), 0, ""), (OSError(28, "No space"), 1, "No space")],
)
def test_marks_that_nobody_can_read_do_not_cost_the_reports(broken, status, message, tmp_path, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise broken

    monkeypatch.setattr("dpbook.classroom.marks.grade", lambda *a, **more: marks("anna"))
    hand_in(tmp_path / "01.ipynb", 1, {})
    monkeypatch.setattr("sys.stdout", Full())
    report = tmp_path / f"{status}.csv"
    assert command_line.main(["grade", str(tmp_path / "01.ipynb"), "--csv", str(report)]) == status
    assert report.exists()
    assert message in capsys.readouterr().err


def test_for_gradescope_a_folder_is_one_submission_whatever_is_in_it(tmp_path, monkeypatch):
    graded = []
    monkeypatch.setattr("dpbook.classroom.marks.grade", lambda found, *a, **more: graded.extend(found) or marks("x"))
    for name in ("01_a", "01_b", "sub/02_c"):
        hand_in(tmp_path / "handed" / f"{name}.ipynb", 1, {})
    to = tmp_path / "results.json"
    assert command_line.main(["grade", str(tmp_path / "handed"), "--gradescope", str(to)]) == 0
    assert [(one.name, len(one.notebooks)) for one in graded] == [("handed", 3)]
    assert json.loads(to.read_text())["score"] == 2


def test_an_empty_roster_leaves_all_unknown():
    assert Roster(("Student",), ()).match(["anna"])[0] == [None]


def test_pages_are_given_back_under_the_names_of_the_downloads():
    names = ["Anna Berg_4711_assignsubmission_file_", "berganna_17_4711_loop", "zoë", "zoë", "lee_LATE_21_4715_loop"]
    done = Marks(tuple(SubmissionMarks(name, ()) for name in names), 1)
    with zipfile.ZipFile(io.BytesIO(pages.to_return(done))) as archive:
        assert archive.namelist() == [
            "Anna Berg_4711_assignsubmission_file_/marks.html",
            "berganna_17_4711_loop.html",
            "003-zoë.html",
            "004-zoë.html",
            "lee_LATE_21_4715_loop.html",
        ]
        assert "zoë" in archive.read("003-zoë.html").decode()
