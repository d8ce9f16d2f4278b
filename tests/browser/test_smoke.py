"""Does a notebook live in JupyterLab as a reader opens it, and is what goes wrong there seen?"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")


def store(lab, name, *cells):
    """Without a kernelspec JupyterLab would ask for one."""
    nbformat.write(new_notebook(cells=list(cells), metadata={"kernelspec": KERNELSPEC}), lab.directory / name)


@pytest.fixture
def notebook(lab, open_notebook):
    store(lab, "smoke.ipynb", new_markdown_cell("# Smoke"), *map(new_code_cell, ("rank = 1", "rank", "1 / 0")))
    return open_notebook("smoke.ipynb")


def test_nobody_is_asked_about_news_and_a_cell_is_found_by_its_place_and_an_error_is_seen(notebook):
    """JupyterLab asks as soon as it is restored, which it is when a notebook has run."""
    notebook.run_all()
    assert notebook.page.get_by_text("Jupyter news").count() == 0
    playwright.expect(notebook.cell(0)).to_contain_text("Smoke")
    playwright.expect(notebook.output(2)).to_contain_text("1")
    playwright.expect(notebook.shown_errors).to_contain_text("ZeroDivisionError")


def test_a_request_to_another_host_and_a_page_error_are_seen(chromium):
    from tests.browser.jupyterlab import Watch

    page = chromium.new_page()
    watch = Watch(page)
    page.set_content('<img src="http://nowhere.invalid/x.png"><script>throw new Error("seen")</script>')
    page.wait_for_timeout(200)
    assert watch.elsewhere == ["http://nowhere.invalid/x.png"]
    assert watch.page_errors == ["seen"]
    page.close()
