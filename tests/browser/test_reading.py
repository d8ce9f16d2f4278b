"""Is a notebook of the book set for reading, in a wide and in a narrow window, and is a new kernel announced?"""

import statistics

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

SCROLLS = """panel => [...panel.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *, .cm-scroller')]
    .filter(box => box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1)
    .filter(box => /auto|scroll/.test(getComputedStyle(box).overflowX + getComputedStyle(box).overflowY))
    .map(box => [box.className, box.innerText.slice(0, 80)])"""
CUT_OFF = """panel => [...panel.querySelectorAll('.jp-OutputArea-output')].flatMap(box => {
    const {right} = box.getBoundingClientRect(), images = [...box.querySelectorAll('img')];
    return images.filter(image => image.getBoundingClientRect().right > right + 1).map(image => image.alt); })"""
SMALL = """panel => [...panel.querySelectorAll('.jp-OutputArea-output img')]
    .filter(image => image.getBoundingClientRect().width < Math.min(image.naturalWidth, 900) - 1)
    .map(image => image.alt)"""
LINES = """panel => [...panel.querySelectorAll('.jp-RenderedMarkdown > p')]
    .filter(p => p.textContent.length > 240 && !p.querySelector('mjx-container'))
    .map(p => p.textContent.length / Math.round(p.clientHeight / parseFloat(getComputedStyle(p).lineHeight)))"""
PROOF = [pytest.param(name, marks=pytest.mark.proof) for name in ("05_all_reduce", "07_naive_and_overlapped")]


@pytest.fixture
def resize(watch):
    """A function that makes the window so many pixels wide."""
    usual = watch.page.viewport_size
    yield lambda width: watch.page.set_viewport_size({**usual, "width": width})
    watch.page.set_viewport_size(usual)


@pytest.mark.parametrize("name", [*PROOF, "13_scaling_wall"])
def test_a_chapter_is_set_in_one_column_and_nothing_in_it_scrolls(resize, open_notebook, name):
    """Figures are drawn with text of 12 pixels and more, at most 900 wide but for two or three."""
    resize(1600)
    notebook = open_notebook(f"chapters/{name}.ipynb")
    images = notebook.panel.locator(".dpbook-player img, .dpbook-explorer img")
    images.first.wait_for()
    look = notebook.panel.evaluate
    assert look(SCROLLS) == look(CUT_OFF) == look(SMALL) == []
    lines = look(LINES)
    assert len(lines) > 3
    assert 60 < statistics.median(lines) < 76
    assert max(lines) < 84
    prose = notebook.panel.locator(".jp-RenderedMarkdown p").first
    assert prose.evaluate("p => getComputedStyle(p).fontSize") == "16px"


@pytest.mark.proof
def test_a_narrow_window_has_no_scrollbars_inside_and_no_file_browser_beside(resize, open_notebook):
    notebook = open_notebook("chapters/13_scaling_wall.ipynb")
    resize(900)
    notebook.reload()
    notebook.panel.locator(".dpbook-explorer img").first.wait_for()
    expect(notebook.page.locator(".jp-FileBrowser")).to_be_hidden()
    assert notebook.panel.evaluate(SCROLLS) == notebook.panel.evaluate(CUT_OFF) == []


@pytest.fixture
def stored(lab, open_notebook):
    """A function that opens a notebook of two cells, of the book or not."""

    def stored(**metadata):
        made = new_notebook(cells=[new_code_cell("a = 1"), new_code_cell("a")])
        made.metadata.update(kernelspec=KERNELSPEC, **metadata)
        nbformat.write(made, lab.directory / "reading.ipynb")
        return open_notebook("reading.ipynb")

    return stored


@pytest.mark.proof
def test_a_new_kernel_is_announced_until_the_first_cell_has_run(stored):
    notebook = stored(dpbook={"title": "Two cells"})
    line = notebook.panel.get_by_text("This kernel has run nothing yet")
    expect(line).to_be_visible()
    run(notebook, 1)
    expect(notebook.panel).to_contain_text("NameError")  # waits until it is shown
    expect(line).to_be_visible()
    line.get_by_role("button", name="Run All Above Selected Cell").click()
    expect(line).to_be_hidden()
    run(notebook, 1)
    expect(notebook.panel).not_to_contain_text("NameError")
    a_kernel_that_goes_on_is_not_announced(notebook, line)
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(line).to_be_visible()


def run(notebook, number):
    """Run a cell, which stays the selected one."""
    notebook.cell(number).locator(".jp-InputArea-editor").click()
    notebook.page.keyboard.press("Control+Enter")
    notebook.wait_until_idle()


def a_kernel_that_goes_on_is_not_announced(notebook, line):
    notebook.save()
    notebook.reload()
    notebook.page.wait_for_timeout(1000)
    expect(line).to_be_hidden()


def test_a_notebook_that_is_not_the_books_stays_as_jupyterlab_shows_it(stored):
    notebook = stored()
    notebook.page.wait_for_timeout(1000)
    assert notebook.panel.locator(".dpbook-new-kernel, .dpbook-reading").count() == 0
