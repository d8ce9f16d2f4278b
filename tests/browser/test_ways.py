"""Do the ways on, and the links of the map of progress, open the notebooks that they name in JupyterLab?"""

import pytest

playwright = pytest.importorskip("playwright.sync_api")


def test_the_ways_on_and_the_map_open_what_they_name(open_notebook):
    """The map is the one that is stored: its links work before anything is run, where outputs are not trusted."""
    notebook = open_notebook("chapters/00_start_here.ipynb")
    start = notebook.page
    for scope, link, opened in (
        (notebook.panel.locator(".jp-OutputArea"), "05 All-reduce", "05_all_reduce.ipynb"),
        (notebook.panel.locator(".jp-OutputArea"), "exercises 08", "08_buckets.ipynb"),
        (notebook.panel.locator(".jp-MarkdownCell"), "01 · The four-phase loop", "01_four_phase_loop.ipynb"),
    ):
        start.get_by_role("tab", name="00_start_here.ipynb").click()
        scope.get_by_role("link", name=link, exact=True).last.click()
        playwright.expect(start.get_by_role("tab", name=opened)).to_have_attribute("aria-selected", "true")
