"""Chapter 16: Spending exactness."""

from typing import TYPE_CHECKING

from dpbook.book.ch16.racing import (
    Entry,
    Raced,
    behind_exact,
    curves,
    explore_race,
    first_by_link,
    leaders,
    period_for,
    race,
    race_over,
    stored_races,
    taking_part,
)
from dpbook.book.ch16.sending import SHAPES, Drawn, Largest, Multiples, Setting, payload, powersgd_elements, wire
from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.book.ch16.hooks import Trained, train_all

__getattr__ = lazy_exports(__name__, Trained="hooks", train_all="hooks")
