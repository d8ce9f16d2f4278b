"""The learner's exercises, made from the instructor's: ``python -m dpbook.classroom.tasks.exercise_notebooks``.

``exercises/solutions/NN_name.ipynb`` is the source, ``exercises/NN_name.ipynb`` what a learner gets. Marks and metadata
are nbgrader's (schema 3), so that its ``generate_assignment`` and ``autograde`` work on the same files:

- In an answer cell (``solution``), the lines between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` become
  ``# YOUR CODE HERE`` and ``raise NotImplementedError``. Lines ``### STUB: text`` right after BEGIN replace these two:
  ``### STUB: prediction = ...  # your number``. (nbgrader drops them with the region and puts its own stub; with the
  configuration that ``dpbook nbgrader`` writes it does as we do.)
- In a check cell (``grade``, ``locked``), the lines between ``### BEGIN HIDDEN TESTS`` and ``### END HIDDEN TESTS`` go.
- A markdown cell that is both ``solution`` and ``grade`` is an argument in words, which a person marks: the model
  answer becomes ``YOUR ANSWER HERE``.
- Outputs go, but for those of cells tagged ``keep-output``: pictures of the unsolved state. Cell ids stay.
"""

import sys
from pathlib import Path

from dpbook.classroom.tasks.notebook_structure import dumps, faults, learners, read
from dpbook.core import DpbookError, checkout, write_atomically


def generated(root: Path) -> dict[Path, bytes]:
    """Return the content that each learner's notebook below ``root/exercises`` should have. Raises `DpbookError`."""
    exercises = root / "exercises"
    found = sorted((exercises / "solutions").glob("[0-9][0-9]_*.ipynb"))
    return {exercises / path.name: dumps(learners(read(path), path.name)) for path in found}


def stale(root: Path | None = None) -> list[Path]:
    """The learner's notebooks that are not what would be generated now, or have no source (default: of this book)."""
    root = root or checkout.root()
    expected = generated(root)
    there = set((root / "exercises").glob("*.ipynb"))
    wrong = {path for path, content in expected.items() if path not in there or path.read_bytes() != content}
    return sorted(wrong | (there - expected.keys()))


def main() -> int:
    """Write all learner's notebooks that are stale; on any fault write none. Returns the exit status."""
    try:
        root = checkout.root()
        problems = [
            line for path in sorted((root / "exercises" / "solutions").glob("*.ipynb")) for line in faults(path)
        ]
        if problems:
            raise DpbookError("\n".join(problems))
        expected = generated(root)
    except DpbookError as error:
        print(error, file=sys.stderr)
        return 1
    for path in stale(root):
        if path in expected:
            write_atomically(path, expected[path])
            print(f"written: {path.relative_to(root)}")
        else:
            print(f"without a source, left alone: {path.relative_to(root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
