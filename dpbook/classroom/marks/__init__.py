"""Marks for submissions: extracting the answers, judging them, and the results."""

from dpbook.classroom.marks.grading import grade
from dpbook.classroom.marks.marks import (
    ExerciseMarks,
    Marks,
    SubmissionMarks,
    TaskMarks,
    answered,
    exercise_named,
    reported,
    table,
)
from dpbook.classroom.marks.similarity import find_similar
from dpbook.classroom.marks.submissions import Submission, find
from dpbook.classroom.marks.submitted_notebook import Unreadable, WrittenQuestion, read_exercise
from dpbook.classroom.tasks.notebook_cells import without_regions
