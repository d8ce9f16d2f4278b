"""Do the links of the map of progress, and the ways on, open the notebooks that they name in JupyterLab?

Nothing in them is run, and JupyterLab trusts no output that it has not seen made: links work then, and players step.
"""

import pytest

playwright = pytest.importorskip("playwright.sync_api")


@pytest.mark.proof
def test_from_the_map_to_a_chapter_that_nobody_has_run_and_on_to_its_exercises(open_notebook):
    start = open_notebook("chapters/00_start_here.ipynb")
    chapter = follow(start, ".jp-OutputArea", "05 All-reduce", "chapters/05_all_reduce.ipynb")
    its_player_steps_without_a_script_of_its_own(chapter)
    follow(chapter, ".jp-MarkdownCell", "05 · All-reduce", "exercises/05_all_reduce.ipynb")


def follow(notebook, scope, link, path):
    """Click on a link in ``notebook``; return what it opens, the notebook at ``path``."""
    from tests.browser.jupyterlab import Notebook

    notebook.panel.locator(scope).get_by_role("link", name=link, exact=True).last.click()
    tab = notebook.page.get_by_role("tab", name=path.rpartition("/")[2]).last
    playwright.expect(tab).to_have_attribute("aria-selected", "true")
    opened = Notebook(notebook.page, notebook.server, path)
    opened.wait_until_idle()
    return opened


def its_player_steps_without_a_script_of_its_own(chapter):
    from tests.browser.test_viewer import keyboard_works, player

    assert chapter.page.evaluate("document.querySelector('.dpbook-film script')") is None
    keyboard_works(player(chapter))
