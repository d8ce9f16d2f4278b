"""A chapter as slides: an HTML file that needs nothing else."""

from dpbook.app.slides.deck import write
