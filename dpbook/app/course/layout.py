"""The folder of a course for nbgrader: its configuration, and an assignment for each exercise."""

from dataclasses import dataclass
from pathlib import Path

from dpbook.core import checkout, write_atomically

CONFIG = "nbgrader_config.py"
TEXT = '''\
"""nbgrader's configuration for the exercises of dpbook: docs/grading.md, "With nbgrader"."""

from dpbook.app.course.pipeline import configure

c = get_config()
c.CourseDirectory.course_id = "dpbook"
# The instances that answers are tried on are drawn from it: keep it to yourself until the marks are out.
configure(c, seed={seed})
'''


@dataclass(frozen=True)
class Laid:
    """What was done: files that are new, and those that were there and are not what would be written now."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def lay_out(folder: Path, seed: int) -> Laid:
    """Write what a course's ``folder`` lacks; nothing that is there is replaced."""
    wanted = {folder / CONFIG: TEXT.format(seed=seed).encode()}
    for path in sorted((checkout.root() / "exercises" / "solutions").glob("*.ipynb")):
        wanted[folder / "source" / path.stem / path.name] = path.read_bytes()
    there = {path for path in wanted if path.exists() or path.is_symlink()}
    for path in wanted.keys() - there:
        write_atomically(path, wanted[path])
    changed = {path for path in there if path.name != CONFIG and path.read_bytes() != wanted[path]}
    return Laid(tuple(sorted(wanted.keys() - there)), tuple(sorted(changed)))
