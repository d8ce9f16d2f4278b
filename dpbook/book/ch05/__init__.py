"""Chapter 05: All-reduce."""

from dpbook.book.ch05.broken import broken_ring
from dpbook.book.ch05.family import draw_family
from dpbook.book.ch05.traffic import draw_traffic
