"""Chapter 06: The cost of a collective."""

from dpbook.book.ch06.beside_measured import against_measured
from dpbook.book.ch06.scattered import price_scattered
from dpbook.book.ch06.slow_ports import over_slow_ports
from dpbook.book.ch06.sweeps import sample
