"""Is a reader's work safe, and does everything else follow the published notebooks?"""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import __version__
from dpbook.app.lab import workbook
from dpbook.app.lab.workbook import MANIFEST, CopyReport, refresh
from dpbook.core import checkout as published_book
from dpbook.core.errors import DpbookError

CHAPTER = "chapters/01_loop.ipynb"


@pytest.fixture
def book(tmp_path):
    root = tmp_path / "book"
    for name in (CHAPTER, "chapters/data/points.csv", "exercises/01_tasks.ipynb", "exercises/solutions/01_tasks.ipynb"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name} v1")
    return root


@pytest.fixture
def work(tmp_path):
    return tmp_path / "workbook"


def names(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST}


def test_chapters_and_exercises_are_copied_and_solutions_are_not(book, work):
    refresh(book, work)
    assert names(work) == {CHAPTER, "chapters/data/points.csv", "exercises/01_tasks.ipynb"}


def test_a_second_copy_changes_nothing(book, work):
    refresh(book, work)
    report = refresh(book, work)
    assert report == CopyReport(current=[CHAPTER, "chapters/data/points.csv", "exercises/01_tasks.ipynb"])


def test_an_unchanged_file_is_updated(book, work):
    refresh(book, work)
    (book / CHAPTER).write_text("v2")
    assert refresh(book, work).updated == [CHAPTER]
    assert (work / CHAPTER).read_text() == "v2"


def test_a_changed_file_stays_when_the_book_has_nothing_new(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    report = refresh(book, work)
    assert (report.changed, report.beside) == ([CHAPTER], [])
    assert (work / CHAPTER).read_text() == "mine"


def test_a_new_version_is_laid_beside_a_changed_file_once(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    (book / CHAPTER).write_text("v2")
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert (work / CHAPTER).read_text() == "mine"
    (work / "chapters/01_loop.new.ipynb").unlink()
    assert refresh(book, work).changed == [CHAPTER]
    assert not (work / "chapters/01_loop.new.ipynb").exists()


def exercise(*sources):
    mark = {"nbgrader": {"solution": True}}
    cells = [
        {"id": f"a{n}", "cell_type": "code", "metadata": mark, "source": [text], "outputs": [], "execution_count": None}
        for n, text in enumerate(sources)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def answers(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


STUB = "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError"


def test_a_new_version_beside_holds_the_readers_answers_and_the_new_stubs(book, work):
    published, mine = book / CHAPTER, work / CHAPTER
    published.write_text(exercise(STUB, STUB, "guess = ..."))
    refresh(book, work)
    mine.write_text(exercise("def f():\n    return 1", STUB, "guess = 3"))
    new = STUB.replace("f()", "f(x)")
    published.write_text(exercise("def f(x):\n    raise NotImplementedError", new, "", STUB))
    ((_, beside),) = refresh(book, work).beside
    expected = ["def f():\n    return 1", new, "guess = 3", STUB]
    assert answers(work / beside) == expected
    assert answers(mine) == ["def f():\n    return 1", STUB, "guess = 3"]
    (work / beside).write_text(exercise(*expected[:2], "guess = 4", "def g(): pass"))
    published.write_text(exercise(STUB, STUB, "guess = ...  # again", STUB))
    ((_, again),) = refresh(book, work).beside
    assert again != beside
    assert answers(work / again) == ["def f():\n    return 1", STUB, "guess = 4", "def g(): pass"]


def test_what_is_carried_over_is_the_latest_answer_and_no_stub_is_one(book, work):
    published, mine = book / CHAPTER, work / CHAPTER
    published.write_text(exercise(STUB, STUB, "guess = ..."))
    refresh(book, work)
    branch = "def f(x):\n    if x < 0:\n        raise NotImplementedError\n    return x"
    mine.write_text(exercise("def f():\n    return 'wrong'", branch, ""))
    published.write_text(exercise(STUB, STUB, "guess = ...  # a number"))
    ((_, beside),) = refresh(book, work).beside
    assert answers(work / beside) == ["def f():\n    return 'wrong'", branch, "guess = ...  # a number"]
    mine.write_text(exercise("def f():\n    return 'right'", branch, ""))  # and not the version beside
    published.write_text(exercise(STUB, STUB, "guess = ...  # two numbers"))
    assert refresh(book, work).beside == [(CHAPTER, beside)]
    assert answers(work / beside) == ["def f():\n    return 'right'", branch, "guess = ...  # two numbers"]


def test_the_file_beside_is_refreshed_while_the_reader_has_not_touched_it(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    for version in ("v2", "v3"):
        (book / CHAPTER).write_text(version)
        refresh(book, work)
    assert (work / "chapters/01_loop.new.ipynb").read_text() == "v3"
    assert not (work / "chapters/01_loop.new2.ipynb").exists()


def test_work_in_the_file_beside_is_kept_too(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    (book / CHAPTER).write_text("v2")
    refresh(book, work)
    (work / "chapters/01_loop.new.ipynb").write_text("mine as well")
    (book / CHAPTER).write_text("v3")
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new2.ipynb")]
    assert (work / "chapters/01_loop.new.ipynb").read_text() == "mine as well"
    assert (work / "chapters/01_loop.new2.ipynb").read_text() == "v3"


def test_a_deleted_file_comes_back(book, work):
    refresh(book, work)
    (work / CHAPTER).unlink()
    assert refresh(book, work).restored == [CHAPTER]
    assert (work / CHAPTER).exists()


@pytest.mark.parametrize("manifest", [None, "", "{", "[]", '{"written": 3, "offered": {}}'])
def test_without_a_manifest_whatever_differs_counts_as_the_readers(book, work, manifest):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    if manifest is None:
        (work / MANIFEST).unlink()
    else:
        (work / MANIFEST).write_text(manifest)
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert (work / CHAPTER).read_text() == "mine"


def test_a_file_of_the_readers_own_is_left_alone(book, work):
    refresh(book, work)
    (work / "chapters/notes.ipynb").write_text("mine")
    refresh(book, work)
    assert (work / "chapters/notes.ipynb").read_text() == "mine"


def test_no_half_written_file_is_left_when_writing_fails(book, work, monkeypatch):
    refresh(book, work)
    (book / CHAPTER).write_text("v2")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        refresh(book, work)
    assert (work / CHAPTER).read_text() == f"{CHAPTER} v1"
    assert names(work) == {CHAPTER, "chapters/data/points.csv", "exercises/01_tasks.ipynb"}


def test_a_book_without_notebooks_is_an_error(tmp_path, work):
    with pytest.raises(DpbookError, match="no chapters"):
        refresh(tmp_path, work)


def test_the_summary_says_where_the_new_version_is(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    (book / CHAPTER).write_text("v2")
    assert "chapters/01_loop.new.ipynb" in str(refresh(book, work))


def notebook(*sources, outputs=(), metadata=None, lines=False):
    """A notebook as JSON. Sources are stored as one string or, with ``lines``, as lines: both are valid."""
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{source[:8].strip()}",
            "metadata": {},
            "outputs": list(outputs),
            "source": source.splitlines(keepends=True) if lines else source,
        }
        for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": metadata or {}, "nbformat": 4, "nbformat_minor": 5})


def run_and_save(path):
    """File after JupyterLab has run its cells one by one: nothing in it is the reader's."""
    stored = json.loads(path.read_text())
    stored["metadata"]["language_info"] = {"name": "python", "version": "3.11.2"}
    for count, cell in enumerate(stored["cells"], start=1):
        cell["source"] = "".join(cell["source"])
        cell["metadata"]["execution"] = {"iopub.status.busy": "2030-01-01"}
        if cell["cell_type"] == "code":
            cell["execution_count"] = count
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"run {count}\n"}]
    blank = {"cell_type": "code", "execution_count": None, "id": "blank", "metadata": {}, "outputs": [], "source": []}
    stored["cells"].append(blank)
    path.write_text(json.dumps(stored, indent=1))


def change_cells(path, change):
    stored = json.loads(path.read_text())
    change(stored["cells"])
    path.write_text(json.dumps(stored))


def cells_of(path_or_text):
    text = path_or_text if isinstance(path_or_text, str) else path_or_text.read_text()
    return json.loads(text)["cells"]


FIRST, SECOND = notebook("a = 1\nb = 2", "a + b", lines=True), notebook("a = 1\nb = 3", "a + b", lines=True)


@pytest.fixture
def opened(book, work):
    """A book whose chapter is a notebook, copied once: the published file and the reader's."""
    (book / CHAPTER).write_text(FIRST)
    refresh(book, work)
    return book / CHAPTER, work / CHAPTER


def test_running_and_saving_a_notebook_is_no_change(book, work, opened):
    source, mine = opened
    run_and_save(mine)
    saved = mine.read_text()
    assert CHAPTER in refresh(book, work).current
    assert mine.read_text() == saved  # nor is the run thrown away while the book has nothing new
    source.write_text(SECOND)
    assert refresh(book, work).updated == [CHAPTER]
    assert cells_of(mine) == cells_of(SECOND)


def test_new_published_outputs_reach_a_reader_who_has_only_run_the_notebook(book, work, opened):
    source, mine = opened
    run_and_save(mine)
    better = notebook("a = 1\nb = 2", "a + b", lines=True, metadata={"dpbook": {"minutes": 5}})
    source.write_text(better)
    assert refresh(book, work).updated == [CHAPTER]
    assert json.loads(mine.read_text())["metadata"] == {"dpbook": {"minutes": 5, "version": __version__}}


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells[0].update(source="a = 7"),
        lambda cells: cells.append({**cells[0], "id": "new", "source": "mine"}),
        lambda cells: cells.pop(),
        lambda cells: cells.reverse(),
        lambda cells: cells[0].update(cell_type="raw"),
        lambda cells: cells[0].update(attachments={"photo.png": {"image/png": "AAAA"}}),
    ],
)
def test_a_notebook_whose_cells_the_reader_has_changed_is_kept(book, work, opened, change):
    source, mine = opened
    change_cells(mine, change)
    run_and_save(mine)
    saved = mine.read_text()
    assert refresh(book, work).changed == [CHAPTER]
    source.write_text(SECOND)
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert mine.read_text() == saved
    assert cells_of(work / "chapters/01_loop.new.ipynb") == cells_of(SECOND)


def test_a_change_that_was_taken_back_is_none(book, work, opened):
    source, mine = opened
    change_cells(mine, lambda cells: cells[0].update(source="a = 7"))
    source.write_text(SECOND)
    refresh(book, work)
    mine.write_text(FIRST)
    assert refresh(book, work).updated == [CHAPTER]
    assert cells_of(mine) == cells_of(SECOND)


def test_a_file_beside_that_was_only_run_is_refreshed(book, work, opened):
    source, mine = opened
    change_cells(mine, lambda cells: cells[0].update(source="mine"))
    source.write_text(SECOND)
    refresh(book, work)
    run_and_save(work / "chapters/01_loop.new.ipynb")
    source.write_text(notebook("third"))
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert cells_of(work / "chapters/01_loop.new.ipynb") == cells_of(notebook("third"))


def test_a_new_version_of_the_book_that_publishes_the_same_notebook_offers_nothing(book, work, opened, monkeypatch):
    source, mine = opened
    change_cells(mine, lambda cells: cells[0].update(source="a = 7"))
    refresh(book, work)
    monkeypatch.setattr(workbook, "__version__", "99.0")
    report = refresh(book, work)
    assert (report.changed, report.beside) == ([CHAPTER], [])
    source.write_text(SECOND)
    ((_, beside),) = refresh(book, work).beside
    assert json.loads((work / beside).read_text())["metadata"]["dpbook"]["version"] == "99.0"


@pytest.mark.parametrize("broken", ["", "{", "[]", "3", '{"cells": 3}', '{"cells": [{"source": []}]}', "[" * 100_000])
def test_what_cannot_be_read_as_a_notebook_counts_as_changed(book, work, opened, broken):
    source, mine = opened
    mine.write_text(broken)
    source.write_text(SECOND)
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert mine.read_text() == broken


def test_without_a_manifest_a_notebook_that_was_only_run_is_as_published(book, work, opened):
    _, mine = opened
    (work / MANIFEST).unlink()
    run_and_save(mine)
    saved = mine.read_text()
    report = refresh(book, work)
    assert CHAPTER in report.current
    assert mine.read_text() == saved


def test_a_manifest_of_a_later_format_is_not_guessed_at(book, work, opened):
    source, mine = opened
    manifest = json.loads((work / MANIFEST).read_text())
    (work / MANIFEST).write_text(json.dumps({**manifest, "format": manifest["format"] + 1}))
    source.write_text(SECOND)
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert cells_of(mine) == cells_of(FIRST)


@pytest.mark.parametrize(
    "exercise", sorted((published_book.root() / "exercises").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_an_exercise_is_the_readers_from_the_first_answer_and_not_from_a_run(tmp_path, exercise):
    name = f"exercises/{exercise.name}"
    source, mine = tmp_path / "book" / name, tmp_path / "work" / name
    source.parent.mkdir(parents=True)
    shutil.copy(exercise, source)
    refresh(tmp_path / "book", tmp_path / "work")
    run_and_save(mine)
    change_cells(source, lambda cells: cells[0].update(source="another title"))
    assert refresh(tmp_path / "book", tmp_path / "work").updated == [name]
    answers = [n for n, cell in enumerate(json.loads(mine.read_text())["cells"]) if "answer" in cell["id"]]
    assert answers
    change_cells(mine, lambda cells: cells[answers[0]].update(source="mine = 1"))
    change_cells(source, lambda cells: cells[0].update(source="a third title"))
    assert len(refresh(tmp_path / "book", tmp_path / "work").beside) == 1
    assert "mine = 1" in mine.read_text()


ACTIONS = ("publish", "edit", "run", "edit beside", "run beside", "delete beside", "forget", "refresh")


@given(steps=st.lists(st.sampled_from(ACTIONS), max_size=12))
def test_whatever_happens_in_whatever_order_nothing_the_reader_wrote_is_lost(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("any")
    source, mine = root / "book" / CHAPTER, root / "work" / CHAPTER
    source.parent.mkdir(parents=True)
    source.write_text(notebook("v0"))
    refresh(root / "book", root / "work")
    written = set()

    def sources(path):
        return {"".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]}

    for number, step in enumerate(steps):
        action, _, place = step.partition(" ")
        beside = sorted(mine.parent.glob("*.new*.ipynb"))[:1]
        for path in beside if place else [mine]:
            if action in ("edit", "delete"):
                written -= sources(path)
            if action == "edit":
                path.write_text(notebook(f"mine {number}"))
                written.add(f"mine {number}")
            elif action == "run":
                run_and_save(path)
            elif action == "delete":
                path.unlink()
        if action == "publish":
            source.write_text(notebook(f"v{number + 1}"))
        elif action == "forget":
            (root / "work" / MANIFEST).unlink(missing_ok=True)
        elif action == "refresh":
            refresh(root / "book", root / "work")
        assert written <= set().union(*map(sources, mine.parent.glob("*.ipynb")))
