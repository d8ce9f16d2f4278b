"""Marks for what was handed in: what is taken of it, who judges it, and what came of it."""

from dpbook.grading.marking.cells import take
from dpbook.grading.marking.files import Unreadable
from dpbook.grading.marking.grading import grade
from dpbook.grading.marking.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.grading.marking.released import answered, exercise_named, reported
from dpbook.grading.marking.submissions import Handed, find
from dpbook.grading.marking.terminal import table
from dpbook.grading.marking.words import InWords
from dpbook.grading.regions import without_regions
