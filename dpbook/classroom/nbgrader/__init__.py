"""A course that nbgrader runs: its folder, and what nbgrader is to do otherwise for exercises of the book."""

from pathlib import Path
from typing import NamedTuple

from dpbook.classroom.tasks.notebook_cells import dumps
from dpbook.core import DpbookError, checkout, write_atomically

CONFIG = "nbgrader_config.py"
TEXT = '''\
"""nbgrader's configuration for the exercises of dpbook: docs/grading.md, "With nbgrader"."""

from dpbook.classroom.nbgrader.pipeline import configure

c = get_config()
c.CourseDirectory.course_id = "dpbook"
# The instances that answers are tried on are drawn from it: keep it to yourself until the marks are out.
configure(c, seed={seed}, course={course})
'''


class CourseFiles(NamedTuple):
    """Files of a course: those that are new, and those that were there and differ from what would be written now."""

    written: list[Path]
    unchanged: list[Path]


def write_course_files(folder: Path, seed: int, course: int | None) -> CourseFiles:
    """Write what a course's ``folder`` lacks; nothing that is there is replaced.

    Marks are drawn from ``seed``; with ``course`` the exercises have the numbers of this course. Raises `DpbookError`
    for a folder that holds something and is no course yet: its files would be beside the solutions.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise DpbookError(f"folder must be empty, new, or a course with {CONFIG}, got {str(folder)!r}")
    if course is None:
        sources = {path.name: path.read_bytes() for path in checkout.solutions().glob("*.ipynb")}
    else:
        from dpbook.classroom.course import solutions  # loads what is also started as a module

        sources = {name: dumps(notebook) for name, notebook in solutions(course)}
    wanted = {folder / "source" / Path(name).stem / name: content for name, content in sources.items()}
    wanted[folder / CONFIG] = TEXT.format(seed=seed, course=course).encode()
    there = {path for path in wanted if path.exists() or path.is_symlink()}
    for path in wanted.keys() - there:
        write_atomically(path, wanted[path])
    changed = {path for path in there if path.name != CONFIG and path.read_bytes() != wanted[path]}
    return CourseFiles(sorted(wanted.keys() - there), sorted(changed))
