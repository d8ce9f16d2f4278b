"""Are copied answers found, whatever was renamed, and independent ones left alone?"""

from dpbook.classroom.gradebook import pages
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks, find_similar
from dpbook.classroom.marks.similarity import similar
from dpbook.classroom.tasks.report import Case, Report
from tests.classroom.mutants.edits import reference

ANSWER = reference("08.1")[2]
RENAMED = "# mine\n" + ANSWER.replace("closed", "done").replace("bucket", "heap")
CHANGED = ANSWER.replace("if sum(", "if 1 * sum(")
OTHER = """
def fill(tensors, ready, cap, first):
    groups = []
    for dtype in dict.fromkeys(tensors[index].dtype for index in ready):
        mine, full, size = [index for index in ready if tensors[index].dtype == dtype], [[]], 0
        for index in mine:
            full[-1].append(index)
            size += tensors[index].nbytes
            if size >= (first if len(full) == 1 else cap):
                full.append([])
                size = 0
        groups += [(group[-1], group) for group in full if group]
    return [group for _, group in sorted(groups, key=lambda pair: ready.index(pair[0]))]
"""


def test_a_renamed_copy_is_identical_and_says_what_is_shared():
    (found,) = similar("08.1", {"anna": ANSWER, "berta": RENAMED, "carl": OTHER})
    assert (found.names, found.identical) == (("anna", "berta"), True)
    assert found.shared
    assert all(line in ANSWER for line in found.shared)


def test_a_copy_with_one_change_is_nearly_identical():
    (found,) = similar("08.1", {"anna": ANSWER, "berta": CHANGED, "carl": OTHER})
    assert (found.names, found.identical) == (("anna", "berta"), False)


def test_many_near_copies_are_one_group():
    copies = {f"student {n}": CHANGED.replace("1 *", f"{n} *") for n in range(2, 9)}
    (found,) = similar("08.1", {"anna": ANSWER, **copies, "carl": OTHER})
    assert (set(found.names), found.identical) == ({"anna", *copies}, False)


def test_what_all_were_given_and_short_answers_do_not_count():
    assert similar("08.1", {"anna": ANSWER, "carl": OTHER}) == []
    assert similar("08.1", {"anna": ANSWER, "berta": CHANGED}, given=ANSWER + "\n" + CHANGED) == []
    assert similar("08.1", {"anna": CHANGED, "berta": RENAMED.replace("if sum(", "if 1 * sum(")}, given=ANSWER) == []
    assert similar("08.1", {"anna": "x = 1", "berta": "y = 1", "carl": "def f(:"}) == []


def test_the_class_page_names_them_and_leaves_out_what_is_not_answered():
    def submitted(name, text, answered=True):
        report = Report("08.1", "Fill", (Case("all", 2, answered, answered=answered),))
        return SubmissionMarks(name, (ExerciseMarks("8.ipynb", 8, (TaskMarks("08.1", "Fill", 2, report, text=text),)),))

    both = submitted("anna", ANSWER), submitted("berta", RENAMED)
    marks = Marks((*both, submitted("dora", ANSWER, answered=False)), 1)
    (found,) = find_similar(marks)
    assert found.names == ("anna", "berta")
    assert "identical except for names and comments: anna, berta" in pages.whole_class(marks, ["1", "2", "3"])
