"""Chapter 07: Naive and overlapped."""

from dpbook.book.ch07.steps import FAULTS, play_race, sample, tokens_to_hide
