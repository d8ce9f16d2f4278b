"""Is every published notebook fit to be read, and would each check notice if it were not?"""

import copy
import json
import re
import subprocess

import pytest

from dpbook.core import checkout
from tests.cases import each
from tests.notebooks import hygiene

ROOT = checkout.root()
NOTEBOOKS = {
    path.relative_to(ROOT).as_posix(): path
    for folder in ("chapters", "exercises", "exercises/solutions")
    for path in sorted((ROOT / folder).glob("*.ipynb"))
}


@pytest.mark.skipif(not NOTEBOOKS, reason="there are no notebooks yet")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_published_notebook_is_fit_to_be_read(name):
    notebook = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    checks = hygiene.checks(name.rpartition("/")[0], NOTEBOOKS[name].name)
    assert [complaint for check in checks for complaint in check(notebook)] == []


def test_every_chapter_belongs_to_the_book():
    """An optional chapter, as ``12b_name.ipynb``, stands beside one."""
    chapters = checkout.chapters()
    assert {chapter.path for chapter in chapters} == {*(ROOT / "chapters").glob("*.ipynb")}
    numbers = {chapter.number for chapter in chapters if not chapter.is_optional}
    assert {chapter.number for chapter in chapters if chapter.is_optional} <= numbers


def code(source, *outputs, tags=(), count=1, name="a"):
    metadata = {"tags": list(tags)}
    return {"cell_type": "code", "id": name, "metadata": metadata, "source": source, "outputs": list(outputs)} | {
        "execution_count": count
    }


def markdown(source, name="m"):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    return {"output_type": "display_data", "metadata": {}, "data": {k.replace("_", "/"): v for k, v in data.items()}}


def notebook(*cells, **metadata):
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
VIEW = {hygiene.WIDGET_VIEW.replace("/", "_"): {"model_id": "1"}}


def film(svg="<svg/>", script=""):
    """The output of a player."""
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {hygiene.viewer.PLAYER_MIME: {"svg": svg}, "text/html": script},
    }


GOOD = notebook(
    markdown(["# Title\n", "![A ring of four ranks](ring.png) and half/work/or so"]),
    markdown("`f`\n\n```\n# no title\n```\n\n<details><summary>Why?</summary>\n\n`g`</details>", name="k"),
    code("", count=None, name="b"),
    code("print(1)", stream("1\n"), name="c"),
    code("1 / 0", ERROR, tags=["raises-exception"], name="d"),
    code("sleep()", tags=["nbval-skip"], count=None, name="e"),
    code("t = time()\nprint(t)", stream("3 ms"), tags=["measurement", "nbval-ignore-output"], name="f"),
    code("assert t > 0", name="i"),
    code("whereabouts()", stream("a laptop"), tags=["yours", "nbval-ignore-output"], name="j"),
    code(
        "play()", shown(text_plain="viewer", text_html='<img src="data:image/png;base64,AA/tmp/" alt="ring">'), name="g"
    ),
    code("play()", film("s" * 999_999, (hygiene.viewer.EXTENSION / "player.js").read_text()), name="h"),
)

IGNORED = ["nbval-ignore-output"]
BAD = [
    (hygiene.unexecuted, notebook(code("print(1)", count=None))),
    (hygiene.stored_errors, notebook(code("1 / 0", ERROR))),
    (hygiene.standard_error, notebook(code("warn()", stream("careful", name="stderr")))),
    (hygiene.widget_state, notebook(widgets={"state": {}})),
    (hygiene.widget_state, notebook(code("play()", shown(**VIEW)))),
    (hygiene.heavy_players, notebook(code("play()", film("s" * 600_000)), code("play()", film("s" * 400_001)))),
    (hygiene.old_players, notebook(code("play()", film(script="export function mount() {}")))),
    (hygiene.machine_paths, notebook(code("open('/" + "tmp/x')"))),
    (hygiene.machine_paths, notebook(markdown("see /" + "home/ada/data"))),
    (hygiene.machine_paths, notebook(code("f()", stream("saved to C:" + "\\data")))),
    (hygiene.machine_paths, notebook(code("f()", shown(text_html="<i>/" + "Users/ada</i>")))),
    (hygiene.machine_paths, notebook(code("f()", {**ERROR, "traceback": ["File /" + "root/x.py"]}))),
    (hygiene.cell_ids, notebook(code("1"), code("2"))),
    (hygiene.cell_ids, notebook(code("1", name=None))),
    (hygiene.pictures_without_words, notebook(code("f()", shown(text_html='<img src="x.png">')))),
    (hygiene.pictures_without_words, notebook(code("f()", shown(text_html='<img alt="" src="x.png">')))),
    (hygiene.pictures_without_words, notebook(markdown("![](x.png)"))),
    (hygiene.titles, notebook(markdown("# Title\n\n# Part A"))),
    (hygiene.titles, notebook(markdown("## Section"))),
    (hygiene.marks_in_answers, notebook(markdown("How?\n\n<details><summary>Answer</summary>With `f`.</details>"))),
    (hygiene.marks_in_answers, notebook(markdown("<details><summary>Answer</summary>The *first*.</details>"))),
    (hygiene.bitmaps, notebook(code("plot()", shown(image_png="AAAA", text_plain="a plot")))),
    (hygiene.printed_errors, notebook(code("f()", stream("Traceback (most recent call last):\n"), tags=IGNORED))),
    (hygiene.unheld, notebook(code("time()", stream("3 ms"), tags=["measurement"]))),
    (hygiene.unheld, notebook(code("t = time()\nt", stream("3 ms"), tags=IGNORED), code("assert u > 0"))),
    (hygiene.unheld, notebook(code("# NBVAL_IGNORE_OUTPUT\ntime()", stream("3 ms")))),
    (hygiene.measurements, notebook(code("time()", tags=["measurement", "nbval-ignore-output"]))),
    (hygiene.interactions, notebook(code("interact(f, x=3)", tags=["interact", "nbval-ignore-output"]))),
    (hygiene.interactions, notebook(code("assert f(3)\ninteract(f, x=3)", tags=["nbval-ignore-output"]))),
    (
        hygiene.interactions,
        notebook(code("assert f(3)\ninteract(f, x=3)", stream("3"), tags=["interact", "nbval-ignore-output"])),
    ),
    (hygiene.measurements, notebook(code("time()", stream("3 ms"), tags=["measurement"]))),
    (hygiene.old_source, notebook(code("print(inspect.getsource(f))", stream("def never(): ...\n")))),
    (hygiene.long_cells, notebook(code("\n".join(["f()"] * 21)))),
    (hygiene.long_lines, notebook(code("f" * 121))),
    (hygiene.median_length, notebook(code("\n".join(["f()"] * 6)))),
    (hygiene.too_much, notebook(*[code("f()")] * 41)),
    (hygiene.too_much, notebook(markdown("word " * 3501))),
    (hygiene.too_little, notebook(markdown("word " * 1200), *[code("f()")] * 17)),
    (hygiene.too_little, notebook(markdown("word " * 1199), *[code("f()")] * 18)),
]


@each(("check", "bad"), BAD)
def test_a_check_finds_what_it_is_for(check, bad):
    assert check(copy.deepcopy(bad))


@each("check", hygiene.CHAPTER)
def test_a_check_is_quiet_on_a_good_notebook(check):
    assert check(GOOD) == []


def test_a_chapter_of_the_right_size_is_neither_too_long_nor_too_short():
    right = notebook(markdown("word " * 1200), *[code("f()")] * 18)
    assert hygiene.too_little(right) + hygiene.too_much(right) == []


def test_every_check_is_known_to_be_able_to_fail():
    assert {check for check, _ in BAD} == {*hygiene.CHAPTER, hygiene.too_little}


REGISTRY = re.compile(r"\b(pypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs\.org|anaconda\.org)\b")


def strays(written):
    """Machine paths and registry hosts in a text."""
    return [match[0] for pattern in (hygiene.MACHINE_PATH, REGISTRY) for match in pattern.finditer(written)]


def tracked():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [] if listed.returncode else [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_file_of_the_repository_names_a_machine_or_a_registry():
    files = tracked()
    if not files:
        pytest.skip("this is no git checkout")
    these = {"tests/notebooks/hygiene.py", "tests/notebooks/test_hygiene.py"}  # they spell out what they look for
    found = {}
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if name in these or path.suffix == ".ipynb" or not path.is_file():
            continue
        try:
            written = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if strays(written):
            found[name] = strays(written)
    assert found == {}


@pytest.mark.parametrize("written", ["cd /" + "work/main", "mirror: https://pypi" + ".org/simple", "D:" + "\\book"])
def test_a_stray_name_is_found(written):
    assert strays(written)


@pytest.mark.parametrize("written", ["https://example.org/tmp/x", "~/work/x", "frame/work/x", "$HOME/tmp/", "4/work"])
def test_an_innocent_slash_is_not(written):
    assert strays(written) == []
