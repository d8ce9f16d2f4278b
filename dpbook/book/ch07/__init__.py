"""Chapter 07: Naive and overlapped."""

from dpbook.book.ch07.race import play_race
from dpbook.book.ch07.steps import FAULTS, sample
from dpbook.book.ch07.tokens import tokens_to_hide
