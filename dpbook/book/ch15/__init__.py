"""Chapter 15: When it breaks."""

from dpbook.book.ch15.collection import Exhibit, exhibit, exhibits
from dpbook.book.ch15.judging import differences, verdicts
from dpbook.book.ch15.mystery import Mystery, draw
