"""Do the cells for a reader's own numbers show fields that redraw, without a request to another host?"""

import json
import re

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

from dpbook.core import checkout

CHAPTER = "chapters/01_four_phase_loop.ipynb"
CELLS = ["setup", "digits", "eight-run", "yours-sum", "yours"]


@pytest.mark.proof
def test_a_slider_redraws_the_readers_own_run(open_notebook):
    notebook = open_notebook(CHAPTER)
    stored = json.loads((checkout.root() / CHAPTER).read_text(encoding="utf-8"))
    places = {cell["id"]: place for place, cell in enumerate(stored["cells"])}
    for name in CELLS:
        notebook.cell(places[name]).locator(".jp-InputArea-editor").click()
        notebook.page.keyboard.press("Control+Enter")
        notebook.wait_until_idle()
    output = notebook.output(places["yours"])
    title = output.locator("img").last
    expect(title).to_have_attribute("alt", re.compile(r"^Your sum at rate 0\.020"))
    handle = output.locator(".noUi-handle")
    handle.focus()
    handle.press("ArrowRight")
    handle.blur()
    expect(title).to_have_attribute("alt", re.compile(r"^Your sum at rate 0\.025"))
    assert notebook.errors() == []
