"""Chapter 09: Real processes."""

from dpbook.book.ch09.logs import mistakes
