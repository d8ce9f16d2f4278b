"""Does every figure of a chapter fit its output, so that the mouse wheel scrolls the notebook and nothing inside it?"""

import pytest

pytest.importorskip("playwright.sync_api")

TOO_TALL = """panel => [...panel.querySelectorAll('.jp-OutputArea-output')]
    .filter(output => output.querySelector('img, svg') && output.scrollHeight > output.clientHeight)
    .map(output => [output.innerText.slice(0, 80), output.scrollHeight - output.clientHeight])"""


PROOF = [pytest.param(name, marks=pytest.mark.proof) for name in ("05_all_reduce", "07_naive_and_overlapped")]


@pytest.mark.parametrize("name", [*PROOF, "13_scaling_wall"])
def test_no_output_with_a_figure_has_a_scrollbar_of_its_own(open_notebook, name):
    notebook = open_notebook(f"chapters/{name}.ipynb")
    figures = notebook.panel.locator(".dpbook-player img, .dpbook-explorer img")
    figures.first.wait_for()
    assert figures.count() > 0
    assert notebook.panel.evaluate(TOO_TALL) == []
