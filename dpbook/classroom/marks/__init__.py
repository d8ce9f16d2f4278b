"""Marks for what was handed in: what is taken of it, who judges it, and what came of it."""

from dpbook.classroom.marks.cells import take
from dpbook.classroom.marks.files import Unreadable
from dpbook.classroom.marks.grading import grade
from dpbook.classroom.marks.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.classroom.marks.released import answered, exercise_named, reported
from dpbook.classroom.marks.submissions import Handed, find
from dpbook.classroom.marks.terminal import table
from dpbook.classroom.marks.written_answers import InWords
from dpbook.classroom.tasks.solution_marks import without_regions
