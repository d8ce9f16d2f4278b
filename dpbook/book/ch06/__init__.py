"""Chapter 06: The cost of a collective."""

from dpbook.book.ch06.links import against_measured, over_slow_ports, price_scattered, sample
