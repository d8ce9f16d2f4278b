"""Reports of marks: a gradebook CSV, Gradescope's file, and pages for learners, the class and answers in words."""

from dpbook.classroom.gradebook import board, pages, words
from dpbook.classroom.gradebook.gradebook import Roster, read, results, spreadsheet
