"""Is a reader's work safe, and does everything else follow the published notebooks?"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbook.errors import DpbookError
from dpbook.workbook import MANIFEST, Report, refresh

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
    assert report == Report(current=[CHAPTER, "chapters/data/points.csv", "exercises/01_tasks.ipynb"])


def test_an_unchanged_file_is_updated(book, work):
    refresh(book, work)
    (book / CHAPTER).write_text("v2")
    assert refresh(book, work).updated == [CHAPTER]
    assert (work / CHAPTER).read_text() == "v2"


def test_a_changed_file_stays_when_the_book_has_nothing_new(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    report = refresh(book, work)
    assert (report.kept, report.beside) == ([CHAPTER], [])
    assert (work / CHAPTER).read_text() == "mine"


def test_a_new_version_is_laid_beside_a_changed_file_once(book, work):
    refresh(book, work)
    (work / CHAPTER).write_text("mine")
    (book / CHAPTER).write_text("v2")
    assert refresh(book, work).beside == [(CHAPTER, "chapters/01_loop.new.ipynb")]
    assert (work / CHAPTER).read_text() == "mine"
    (work / "chapters/01_loop.new.ipynb").unlink()
    assert refresh(book, work).kept == [CHAPTER]
    assert not (work / "chapters/01_loop.new.ipynb").exists()


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


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.sampled_from(["publish", "edit", "edit beside", "delete beside", "refresh"]), max_size=12))
def test_whatever_happens_in_whatever_order_nothing_the_reader_wrote_is_lost(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("any")
    source, mine = root / "book" / CHAPTER, root / "work" / CHAPTER
    source.parent.mkdir(parents=True)
    source.write_text("v0")
    refresh(root / "book", root / "work")
    written = set()
    for number, step in enumerate(steps):
        beside = sorted(mine.parent.glob("*.new*.ipynb"))
        if step == "publish":
            source.write_text(f"v{number + 1}")
        elif step == "edit":
            written.discard(mine.read_text())
            mine.write_text(f"mine {number}")
            written.add(f"mine {number}")
        elif step == "edit beside" and beside:
            written.discard(beside[0].read_text())
            beside[0].write_text(f"mine {number}")
            written.add(f"mine {number}")
        elif step == "delete beside" and beside:
            written.discard(beside[0].read_text())
            beside[0].unlink()
        elif step == "refresh":
            refresh(root / "book", root / "work")
        assert written <= {p.read_text() for p in mine.parent.iterdir()}
