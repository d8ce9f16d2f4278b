"""The book as web pages that are built from the stored notebooks and work without a kernel, and as a PDF."""

from dpbook.app.site.builder import BuiltSite, build
from dpbook.app.site.films import draw_films
from dpbook.app.site.printing import find_chromium, print_book

__all__ = ["BuiltSite", "build", "draw_films", "find_chromium", "print_book"]
