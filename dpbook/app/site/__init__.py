"""The book as pages: built from the stored notebooks, alive without a kernel, printed."""

from dpbook.app.site.builder import Built, build
from dpbook.app.site.films import draw_films
from dpbook.app.site.printing import find_chromium, print_book

__all__ = ["Built", "build", "draw_films", "find_chromium", "print_book"]
