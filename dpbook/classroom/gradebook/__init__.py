"""Reports of marks: a spreadsheet for a gradebook, Gradescope's file, pages for learners, the class, and for words."""

from dpbook.classroom.gradebook import board, pages, words
from dpbook.classroom.gradebook.gradebook import Roster, read, results, spreadsheet
