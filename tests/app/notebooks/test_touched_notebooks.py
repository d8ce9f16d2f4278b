"""Is every notebook found that a change may alter, and none where nothing has changed?"""

import subprocess

import pytest

from dpbook.core import PACKAGE, DpbookError, checkout
from tools.touched_notebooks import SOURCES, changed_since, concerns, needed, validate_touched

ROOT = checkout.root()


def chapter(number):
    (found,) = ROOT.glob(f"chapters/{number:02d}_*.ipynb")
    return found


def exercise(number):
    (found,) = ROOT.glob(f"exercises/solutions/{number:02d}_*.ipynb")
    return found


def test_what_is_used_is_followed_to_its_end_and_through_doors():
    """Chapter 10 imports doors alone; the starter is three modules behind one, and the worker is named in a string."""
    assert {
        "dpbook.ddp.reducer",
        "dpbook.core.fork_server.starter",
        "dpbook.ranks.worker",
        "dpbook.ranks",
    } <= needed(chapter(10))


def test_what_a_door_offers_beside_is_not_followed():
    assert "dpbook.ddp.sharded_optimizer" in SOURCES
    assert not {"dpbook.ddp", "dpbook.runs.launch"} & needed(chapter(1))


def test_a_command_in_a_string_is_the_program_that_it_starts():
    assert "dpbook.app.commands.launch" in needed(chapter(11))
    assert "dpbook.runs.trainer.__main__" in needed(chapter(12))


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        (SOURCES["dpbook.ddp.reducer"], [True, True, False]),
        (SOURCES["dpbook.core.errors"], [True, True, True]),
        (SOURCES["dpbook.ddp"], [True, True, False]),
        (PACKAGE / "book/ch10/tasks.toml", [True, True, False]),
        (PACKAGE / "data/digits.npz", [True, True, True]),
        (chapter(10), [True, False, False]),
        (ROOT / "README.md", [False, False, False]),
        (PACKAGE / "no_longer_there.py", [False, False, False]),
    ],
)
def test_a_changed_file_concerns_those_that_need_it(file, touched):
    notebooks = [chapter(10), exercise(10), chapter(1)]
    assert [concerns(notebook, {file}) for notebook in notebooks] == touched


@pytest.fixture
def repository(tmp_path):
    def git(*command):
        named = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *named, *command], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("kept", "edited", "removed", "staged", "committed"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("ignored")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "committed").write_text("later")
    git("commit", "-am", "second")
    (tmp_path / "edited").write_text("later")
    (tmp_path / "removed").unlink()
    (tmp_path / "staged").write_text("later")
    git("add", "staged")
    (tmp_path / "new é").touch()
    (tmp_path / "ignored").touch()
    return tmp_path


@pytest.mark.parametrize(("base", "more"), [("HEAD", set()), ("HEAD~1", {"committed"})])
def test_git_says_what_differs_from_a_revision(repository, base, more):
    found = {path.relative_to(repository).as_posix() for path in changed_since(base, repository)}
    assert found == {"edited", "removed", "staged", "new é"} | more


def test_a_revision_that_git_does_not_know_is_an_error(repository):
    with pytest.raises(DpbookError, match="no-such-revision"):
        changed_since("no-such-revision", repository)


def test_where_nothing_is_touched_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setattr("tools.touched_notebooks.changed_since", lambda base, root: set())
    assert validate_touched("HEAD", []) == 0
    assert capsys.readouterr().out == "no notebook is touched\n"
