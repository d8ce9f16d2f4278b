"""The reader's copy of the notebooks.

Chapters and exercises are published in the repository and worked on in ``workbook/``. A manifest remembers what was
last written there, so that a later copy can tell a file the reader has changed from one that is merely old:

- an unchanged file is updated; one that the reader deleted comes back. A notebook is changed by a change to what its
  cells say: running and saving it changes nothing, and an update brings the published outputs;
- what a prediction asks for is not there until the reader runs the cell, and predictions are kept by every update: a
  notebook whose question is gone from the new version, with a prediction made under it, counts as changed;
- a changed file stays, and imports in it that no longer work are named with what to write. If the published one has
  changed since, the new version is laid beside it as ``NAME.new.ipynb`` (``NAME.new2.ipynb`` where the reader has
  worked in that one too), once per version, with the reader's answers carried over by the ids of their cells.

Nothing that a reader has written is ever overwritten or removed. The metadata of a notebook that is copied say which
version of the book it is from.
"""

import ast
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dpbook import __version__
from dpbook.core import DpbookError, write_atomically

PREDICT = "**Predict.**"
"""Text by which a Markdown cell asks for a prediction; the code cells below it show the answer."""
OWN = "yours"
"""Tag of a cell whose output depends on the reader: on the machine, or on the progress so far."""
PREDICTION = "dpbook_prediction"
"""Key under which JupyterLab's extension keeps a reader's predictions in the metadata of the cell that asks."""
UNANSWERED = re.compile(r"\s*|YOUR ANSWER HERE\s*|.*# YOUR CODE HERE\n\s*raise NotImplementedError\s*", re.DOTALL)
"""Pattern of an empty cell, or of the stub of an argument or a function."""

NO_NOTEBOOK = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading a file that is no notebook, whatever its name, or one whose cells have no ids."""

Notebook = dict[str, Any]


def without_spoilers(content: bytes) -> bytes:
    """Return the notebook without outputs that answer a prediction, and without those that are the reader's own.

    No cell has a number, as the reader has run none.
    """

    def clear(notebook: Notebook) -> None:
        asked = False
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                asked = PREDICT in "".join(cell["source"])
                continue
            if asked or OWN in cell["metadata"].get("tags", []):
                cell["outputs"] = []
            for numbered in (cell, *(one for one in cell["outputs"] if "execution_count" in one)):
                numbered["execution_count"] = None

    return _edited(content, clear)


def with_predictions(content: bytes, there: bytes) -> bytes:
    """Return the notebook ``content`` with the predictions made in another, by the ids of the cells."""
    own = predictions(there)

    def carry(notebook: Notebook) -> None:
        for cell in notebook["cells"]:
            if cell["id"] in own:
                cell["metadata"][PREDICTION] = own[cell["id"]]

    return _edited(content, carry)


def predictions(content: bytes) -> dict[str, str]:
    """Return the predictions in a notebook, by the ids of the cells that ask for them."""
    try:
        made = {cell["id"]: cell["metadata"].get(PREDICTION) for cell in json.loads(content)["cells"]}
    except NO_NOTEBOOK:
        return {}
    return {name: prediction for name, prediction in made.items() if prediction}


def with_answers(content: bytes, there: bytes) -> bytes:
    """Return the notebook ``content`` with another's answers, but for stubs, and predictions, by cell ids."""

    def carry(notebook: Notebook) -> None:
        answers = {cell["id"]: "".join(cell["source"]) for cell in json.loads(there)["cells"]}
        for cell in notebook["cells"]:
            answer = answers.get(cell["id"], "")
            if cell["metadata"].get("nbgrader", {}).get("solution") and not UNANSWERED.fullmatch(answer):
                cell["source"] = answer.splitlines(keepends=True)

    return with_predictions(_edited(content, carry), there)


def with_version(content: bytes) -> bytes:
    """Return the notebook with the book's version in its metadata."""
    return _edited(content, lambda notebook: notebook["metadata"].setdefault("dpbook", {}).update(version=__version__))


def _edited(content: bytes, edit: Callable[[Notebook], None]) -> bytes:
    """Return the notebook after ``edit``, in the form in which notebooks are published; any other file unchanged."""
    try:
        notebook = json.loads(content)
        edit(notebook)
    except NO_NOTEBOOK:
        return content
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def digest(name: str, content: bytes) -> str:
    """Return a digest of the reader's changes: the text of a notebook's cells, or every byte of any other file.

    Running and saving alter outputs, counts, metadata and the storage of lines. Blank cells are left out: JupyterLab
    adds one when the last cell is run.
    """
    if name.endswith(".ipynb"):
        with suppress(*NO_NOTEBOOK):
            cells = [
                [cell.get("id"), cell["cell_type"], "".join(cell["source"]), cell.get("attachments") or {}]
                for cell in json.loads(content)["cells"]
            ]
            content = json.dumps([cell for cell in cells if cell[2].strip() or cell[3]]).encode()
    return hashed(content)


def hashed(content: bytes) -> str:
    """Return the SHA-256 of ``content``, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


MODULES = {
    "dpbook.audit": "dpbook.runs.audit",
    "dpbook.forecast": "dpbook.runs.forecast",
    "dpbook.grading": "dpbook.classroom",
    "dpbook.program": "dpbook.runs.trainer",
    "dpbook.standin": "dpbook.book.sim",
}
"""Packages that have another name, by the earlier one."""
NAMES = {
    ("dpbook.app", "diagnose"): "dpbook.app.lab",
    ("dpbook.app", "run_summary"): "dpbook.runs.report",
    ("dpbook.ranks", "check_peers"): "dpbook.runs.launch",
    ("dpbook.ranks", "Launch"): "dpbook.runs.launch",
    ("dpbook.ranks", "launch"): "dpbook.runs.launch",
    ("dpbook.ranks", "preflight"): "dpbook.runs.launch",
    ("dpbook.ranks", "read_dumps"): "dpbook.runs.postmortem",
}
"""Packages in which single names are now, by the earlier package and the name."""


class Renamed(NamedTuple):
    """An import of an earlier version, and the statements that take its place."""

    earlier: str
    now: str


def renamed_imports(content: bytes) -> list[Renamed]:
    """Return the imports of a notebook that name an earlier place; none for a file that is no notebook."""
    try:
        cells = json.loads(content)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except NO_NOTEBOOK:
        return []
    found = [renamed for source in sources for renamed in _in_cell(source)]
    return list(dict.fromkeys(found))


def _in_cell(source: str) -> Iterator[Renamed]:
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        statements = ast.walk(ast.parse("\n".join(lines)))
    except SyntaxError:  # half-written
        return
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.level == 0:
            now = _rewritten(statement.module or "", statement.names)
            if now != [ast.unparse(statement)]:
                yield Renamed(ast.unparse(statement), "; ".join(now))


def _rewritten(module: str, names: list[ast.alias]) -> list[str]:
    """Return the statements that import ``names`` from where they are now, under the names that the notebook uses."""
    by_module: dict[str, list[ast.alias]] = {}
    for alias in names:
        target, name = _place(module, alias.name)
        bound = alias.asname or alias.name
        by_module.setdefault(target, []).append(ast.alias(name, None if bound == name else bound))
    return [ast.unparse(ast.ImportFrom(target, aliases, 0)) for target, aliases in by_module.items()]


def _place(module: str, name: str) -> tuple[str, str]:
    """Return the package in which a name is now, and its name there."""
    renamed = MODULES.get(f"{module}.{name}")
    if renamed:
        package, _, last = renamed.rpartition(".")
        return package, last
    return NAMES.get((module, name)) or MODULES.get(module, module), name


MANIFEST = ".manifest.json"
FORMAT = 2  # of the manifest


MAX_NAMES = 4
"""Names of files of the book that a report lists; it names all files that the reader has changed."""


@dataclass
class CopyReport:
    """Files of one copy by what became of them, as paths relative to the workbook."""

    new: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    beside: list[tuple[str, str]] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    imports: list[tuple[str, Renamed]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"  {len(names)} {outcome}: {', '.join(names[:most])}{', …' if len(names) > most else ''}"
            for names, outcome, most in (
                (self.new, "new", MAX_NAMES),
                (self.restored, "restored (you had deleted them)", len(self.restored)),
                (self.updated, "updated", MAX_NAMES),
                (self.changed, "yours, left alone", len(self.changed)),
            )
            if names
        ]
        lines += [f"  {name} was changed by you and has a new version: see {beside}" for name, beside in self.beside]
        lines += [f"  {name}: change `{one.earlier}` to `{one.now}`" for name, one in self.imports]
        if self.current:
            lines.append(f"  {len(self.current)} as published")
        return "\n".join(lines)


@dataclass
class _Manifest:
    """``written``: digest of what was last written to each path; ``offered``: hash of the version last offered."""

    written: dict[str, str] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "_Manifest":
        """Read the manifest; without a readable one every file that differs counts as changed by the reader."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["format"] != FORMAT:
                return cls()
            return cls(dict(stored["written"]), dict(stored["offered"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, path: Path) -> None:
        stored = {"format": FORMAT, "written": self.written, "offered": self.offered}
        write_atomically(path, (json.dumps(stored, indent=1, sort_keys=True) + "\n").encode())


def refresh(book: Path, workbook: Path) -> CopyReport:
    """Copy the notebooks published in ``book`` to ``workbook``, keeping whatever the reader has changed.

    Raises `DpbookError` if ``book`` publishes nothing.
    """
    published = list(_published(book))
    if not published:
        raise DpbookError(f"no chapters or exercises found in {book}")
    manifest = _Manifest.read(workbook / MANIFEST)
    report = CopyReport()
    for source in published:
        content = without_spoilers(source.read_bytes())
        _refresh_one(source.relative_to(book).as_posix(), content, workbook, manifest, report)
    manifest.write(workbook / MANIFEST)
    return report


def _published(book: Path) -> Iterator[Path]:
    """Return all files of chapters/, and the learner's notebooks of exercises/; never the solutions."""
    for path in sorted((book / "chapters").rglob("*")):
        inside = path.relative_to(book).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in inside):
            yield path
    yield from sorted((book / "exercises").glob("[!.]*.ipynb"))


def _refresh_one(name: str, content: bytes, workbook: Path, manifest: _Manifest, report: CopyReport) -> None:
    target = workbook / name
    version = hashed(content)  # what it says: a new version of the book may publish the same
    content = with_version(content)
    offered = manifest.offered.get(name) == version
    if not target.exists():
        (report.restored if name in manifest.written else report.new).append(name)
        _put(name, content, workbook, manifest)
    else:
        there = target.read_bytes()
        update = with_predictions(content, there)
        untouched = manifest.written.get(name) == digest(name, there) and _all_predicted(there, update)
        as_published = digest(name, there) == digest(name, content)
        if there == content or (as_published and (offered or not untouched)):
            manifest.written[name] = digest(name, content)
            report.current.append(name)
        elif untouched:
            _put(name, update, workbook, manifest)
            report.updated.append(name)
        elif offered:
            report.changed.append(name)
        else:
            answered = _with_answers(name, content, workbook, manifest)
            beside = _free_name(name, answered, workbook, manifest)
            _put(beside, answered, workbook, manifest)
            report.beside.append((name, beside))
    if target.exists() and name in (*report.changed, *(own for own, _ in report.beside)):
        report.imports += [(name, renamed) for renamed in renamed_imports(target.read_bytes())]
    manifest.offered[name] = version


def _free_name(name: str, content: bytes, workbook: Path, manifest: _Manifest) -> str:
    """Return the first name beside ``name`` that is free, or holds nothing of the reader's."""
    stem, dot, suffix = name.rpartition(".")
    for number in itertools.count(1):
        beside = f"{stem}.new{number if number > 1 else ''}{dot}{suffix}"
        target = workbook / beside
        if not target.exists():
            return beside
        there = target.read_bytes()
        known = (digest(beside, content), manifest.written.get(beside))
        if digest(beside, there) in known and _all_predicted(there, content):
            return beside
    raise AssertionError("unreachable: the numbers do not end")


def _with_answers(name: str, content: bytes, workbook: Path, manifest: _Manifest) -> bytes:
    """Return a new version of ``name`` with the reader's answers: the file's own, then those of versions beside it."""
    stem, _, suffix = (workbook / name).name.rpartition(".")
    beside = (workbook / name).parent.glob(f"{stem}.new*.{suffix}")
    for path in [workbook / name, *sorted(beside, key=lambda path: (len(path.name), path.name))]:
        there, known = path.read_bytes(), manifest.written.get(path.relative_to(workbook).as_posix())
        if path == workbook / name or known != digest(path.name, there):
            content = with_answers(content, there)
        else:  # nobody has worked in it; its answers are those of earlier files
            content = with_predictions(content, there)
    return content


def _all_predicted(there: bytes, content: bytes) -> bool:
    """Whether ``content`` holds every prediction that is made in ``there``."""
    return predictions(there).items() <= predictions(content).items()


def _put(name: str, content: bytes, workbook: Path, manifest: _Manifest) -> None:
    write_atomically(workbook / name, content)
    manifest.written[name] = digest(name, content)
