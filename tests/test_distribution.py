"""Does the wheel hold the book without its solutions, and the source distribution all of the repository?"""

import email
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

import dpbook
from dpbook.app.command_line import main
from dpbook.classroom.sandbox import server
from dpbook.core import DpbookError, checkout
from tests.cases import each

ROOT = checkout.root()
LINK = re.compile(r"\]\(([^)]+)\)")


def build(source, target, *kinds):
    """Build distributions of the repository ``source``: "wheel", "sdist", or both; no network is asked."""
    chosen = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *chosen, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder with both, built from this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def wheel_files(folder):
    """Return name and content of each file of the wheel in a folder."""
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def wheel(distributions):
    return wheel_files(distributions)


@pytest.fixture(scope="module")
def metadata(wheel):
    (about,) = (content for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(about)


@pytest.fixture(scope="module")
def sdist(distributions):
    """The source distribution, opened."""
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        yield archive


def test_the_wheel_holds_every_chapter_exercise_and_script_and_no_solution(wheel):
    book = {name: content for name, content in wheel.items() if name.startswith("dpbook/published/")}
    paths = [*ROOT.glob("chapters/*.ipynb"), *ROOT.glob("exercises/*.ipynb"), *ROOT.glob("scripts/*.py")]
    published = {f"dpbook/published/{path.relative_to(ROOT).as_posix()}": path.read_bytes() for path in paths}
    assert book == published
    assert not [name for name, content in wheel.items() if name.endswith("ipynb") and b"BEGIN SOLUTION" in content]
    assert not [name for name, content in book.items() if b"checkout.root" in content], "there is no checkout then"


def test_the_wheel_holds_the_whole_package_and_nothing_beside_it(wheel):
    there = (path for path in (ROOT / "dpbook").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    package = {path.relative_to(ROOT).as_posix() for path in there}
    extension = ROOT / "dpbook" / "data" / "jupyter" / "labextensions"
    shared = {path.relative_to(extension).as_posix() for path in extension.rglob("*") if path.is_file()}
    beside = {name for name in wheel if not name.startswith("dpbook/")}
    assert {name for name in wheel if name.startswith("dpbook/") and "/published/" not in name} == package
    assert {name.partition(".data/data/share/jupyter/labextensions/")[2] for name in beside} - {""} == shared
    assert {name.partition("/")[0].partition("-")[0] for name in beside} == {"dpbook"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows the files of the repository")
def test_the_source_distribution_holds_every_file_of_the_repository(sdist):
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name for name in tracked.split("\0") if (ROOT / name).is_file()}
    assert files - {name.partition("/")[2] for name in sdist.getnames()} == set()


def test_from_the_source_distribution_the_same_wheel_is_built(sdist, wheel, tmp_path):
    sdist.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(source, tmp_path, "wheel")
    assert wheel_files(tmp_path) == wheel


def test_the_metadata_say_what_the_repository_says(metadata):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert metadata["Version"] == dpbook.__version__ == citation["version"]
    assert [metadata["Author"]] == [author["name"] for author in citation["authors"]]
    assert metadata["License-Expression"] == "MIT AND CC-BY-4.0"
    assert metadata.get_all("License-File") == ["LICENSE", "LICENSE-PROSE"]


def test_the_page_of_the_package_has_absolute_links_to_what_there_is(metadata):
    repository = metadata["Project-URL"].removeprefix("Repository, ")
    links = LINK.findall(metadata.get_payload())
    ours = [link.removeprefix(repository) for link in links if link.startswith(repository)]
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert len(ours) == len(
        [link for link in LINK.findall((ROOT / "README.md").read_text()) if "://" not in link and link[0] != "#"]
    )
    assert [link for link in ours if not (ROOT / re.sub(r"^/(raw|blob)/main/|#.*", "", link)).is_file()] == []


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder like site-packages, in which the package seems to be installed from a wheel."""
    package = tmp_path / "lib" / "site-packages" / "dpbook"
    (package / "published" / "chapters").mkdir(parents=True)
    (package / "book").mkdir()
    monkeypatch.setattr(checkout, "PACKAGE", package)
    monkeypatch.setattr(server, "PACKAGE", package)
    monkeypatch.chdir(tmp_path)
    return package


def test_an_installed_package_has_the_book_and_says_where_the_rest_is(installed, metadata):
    assert checkout.book() == installed / "published"
    with pytest.raises(DpbookError, match=re.escape("clone the repository")):
        checkout.solutions()


@each("command", [["course", "7", "--to", "course"], ["nbgrader", "class"], ["validate"]])
def test_a_command_that_needs_the_repository_says_so(installed, capsys, command):
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "clone the repository (https://" in err


def test_the_readers_copy_of_an_installed_book_lies_in_the_current_folder(installed, tmp_path, monkeypatch):
    assert checkout.workbook() == tmp_path / "workbook"
    checkout.workbook().mkdir()
    monkeypatch.chdir(checkout.workbook())
    assert checkout.workbook() == tmp_path / "workbook"


def test_the_readers_copy_of_a_checkout_lies_in_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkout.workbook() == ROOT / "workbook"
    assert checkout.book() == ROOT


def test_answers_may_read_what_lies_beside_an_installed_package_but_no_judge(installed, tmp_path, monkeypatch):
    chapter = installed / "book" / "ch01"
    chapter.mkdir()
    numpy = installed.parent / "numpy"
    for file in (chapter / "judge.py", chapter / "cases.py", numpy / "core.py", tmp_path / "bin" / "python"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "lib64").symlink_to("lib")  # as in a virtual environment
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(installed.parent)])
    readable = [path.resolve() for path in server.readable()]

    def may_be_read(file):
        return any(file.is_relative_to(path) for path in readable)

    assert may_be_read(numpy / "core.py")
    assert may_be_read(chapter / "cases.py")
    assert may_be_read(tmp_path / "bin" / "python")
    assert not may_be_read(chapter / "judge.py")


def test_answers_may_read_no_solution_of_a_checkout():
    readable = server.readable()
    for hidden in (checkout.solutions(), checkout.PACKAGE / "book" / "ch01" / "judge.py"):
        assert not [path for path in readable if hidden.is_relative_to(path)]


@pytest.fixture
def page():
    """The module that writes the page of the package, which only the build imports."""
    source = (ROOT / "tools" / "package_page.py").read_text(encoding="utf-8")
    names = {"__name__": "package_page"}
    exec(compile(source, "package_page.py", "exec"), names)
    return names["absolute_links"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("![a picture](docs/a.svg)", "![a picture](R/raw/main/docs/a.svg)"),
        ("see [a page](docs/a.md#part).", "see [a page](R/blob/main/docs/a.md#part)."),
        ("[here](#start) and [there](https://pytorch.org)", "[here](#start) and [there](https://pytorch.org)"),
        ("`x[0](y)` calls", "`x[0](y)` calls"),
    ],
)
def test_relative_links_become_absolute(page, text, expected):
    assert page(text, "R") == expected
