"""Exercises and solutions with the numbers of a course."""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.classroom.course.notebooks import solutions, varying, write_course

__getattr__ = lazy_exports(__name__, solutions="notebooks", varying="notebooks", write_course="notebooks")
