"""A chapter as slides: an HTML file that needs nothing else."""

from dpbook.classroom.slides.deck import write
