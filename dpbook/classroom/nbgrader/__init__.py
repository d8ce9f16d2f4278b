"""A course that nbgrader runs: its folder, and what nbgrader is to do otherwise for exercises of the book."""

from dpbook.classroom.nbgrader.layout import lay_out
