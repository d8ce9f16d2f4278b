"""Chapter 05: All-reduce."""

from dpbook.book.ch05.pictures import broken_ring, draw_family, draw_traffic
