"""Exercises and solutions with the numbers of a course."""

from typing import TYPE_CHECKING

from dpbook.core import lazily

if TYPE_CHECKING:
    from dpbook.classroom.course.notebooks import solutions, varying, write_course

__getattr__ = lazily(__name__, solutions="notebooks", varying="notebooks", write_course="notebooks")
