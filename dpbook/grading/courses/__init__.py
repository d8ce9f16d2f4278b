"""Exercises and solutions with the numbers of a course."""

from dpbook.grading.courses.notebooks import varying, write_course
