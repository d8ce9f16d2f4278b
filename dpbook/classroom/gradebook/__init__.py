"""Reports of marks: a spreadsheet for a gradebook, Gradescope's file, pages for learners and for the class."""

from dpbook.classroom.gradebook import pages
from dpbook.classroom.gradebook.gradebook import Roster, read, results, spreadsheet
