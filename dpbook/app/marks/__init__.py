"""Reports of marks: a spreadsheet for a gradebook, Gradescope's file, pages for learners and for the class."""

from dpbook.app.marks.gradebook import spreadsheet
from dpbook.app.marks.gradescope import results
from dpbook.app.marks.roster import Roster, read
