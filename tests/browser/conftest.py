"""Fixtures for the tests in a real browser; the helpers are in ``jupyterlab.py``.

``open_notebook("chapters/05_all_reduce.ipynb")`` opens a notebook of the server's own copy and returns a `Notebook`.
When the test ends, an error in the page or a request to another host fails it.
"""

import pytest

from dpbook.app.site import find_chromium
from tests.conftest import NO_CHROMIUM

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None
else:
    from tests.browser.jupyterlab import FLAGS, SECONDS, Notebook, Watch, serve

    expect.set_options(timeout=SECONDS * 1000)


def pytest_collection_modifyitems(items):
    """Mark what is in this folder, and say why it is skipped where it cannot run."""
    missing = "playwright is not installed" if sync_playwright is None else None
    if missing is None and find_chromium() is None:
        missing = NO_CHROMIUM
    for item in items:
        if "browser" in item.path.parts[-2:]:
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab `Server` on a copy of the notebooks."""
    with serve(tmp_path_factory.mktemp("jupyterlab")) as server:
        yield server


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def watch(chromium):
    """The one page of all notebooks, and what went wrong in it: JupyterLab is compiled once, half of an opening."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(SECONDS * 1000)
    yield Watch(context.new_page())
    context.close()


@pytest.fixture
def open_notebook(watch, lab):
    """A function that opens a notebook, by its path in the server's directory, and waits for its kernel."""
    yield lambda path: Notebook(watch.page, lab, path).open()
    watch.assert_clean()
    watch.close_notebooks(lab)
