"""Is a notebook from a stranger harmless: does nothing in its outputs run, load or break the page?"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from dpbook.app.notebooks.validation import KERNELSPEC
from dpbook.figures.card.viewer import EXPLORER_MIME as EXPLORER
from dpbook.figures.card.viewer import PLAYER_MIME as PLAYER

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

RUN = "window.harmed = true"
AWAY = "https://elsewhere.invalid"
MARKUP = f'<img src="x" onerror="{RUN}">'
WITHIN = f"""<image href="{AWAY}/a.png"/><use href="{AWAY}/a.svg#a"/><use/><style>@import url({AWAY}/a.css);</style>
<script>{RUN}</script><foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><iframe src="{AWAY}"/>
<img src="{AWAY}/b.png" onerror="{RUN}"/></body></foreignObject>
<a href="javascript:{RUN}"><rect width="60" height="60" onclick="{RUN}"/></a>"""
TITLE = MARKUP.replace("<", "&lt;").replace(">", "&gt;")
FRAMES = '<g class="way"/>'.join(f'<g class="frame"><title>{TITLE}</title>{WITHIN}</g>' for _ in range(4))
FILM = f'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="90" onload="{RUN}">{WITHIN}{FRAMES}</svg>'
KNOB = {"name": "__proto__", "label": MARKUP, "values": [MARKUP, "b"], "at": 0}
KNOBS = {"name": "x", "knobs": [KNOB]}
IMAGE = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHdpZHRoPSIxIiBoZWlnaHQ9IjEiLz4="  # an SVG of 1 × 1
IMG = f'<img src="data:image/svg+xml;base64,{IMAGE}"'


def output(kind, data, *, beside=None):
    return new_output("display_data", data={kind: data, "text/plain": "in words", **(beside or {})})


HOSTILE = [
    output(PLAYER, {"step": MARKUP, "pace": 0, "at": 1.5, "svg": FILM}),
    output(EXPLORER, {"name": "x", "knobs": [KNOB], "figure": f"{MARKUP}<script>{RUN}</script><svg onload='{RUN}'/>"}),
    output(EXPLORER, KNOBS, beside={"text/html": f'{IMG} onload="{RUN}"><script>{RUN}</script>'}),
    output(EXPLORER, KNOBS, beside={"text/html": f"{IMG}>"}),
]
BROKEN = [
    output(PLAYER, {}),
    output(PLAYER, {"step": "round", "pace": "x", "at": "y", "svg": '<svg xmlns="http://www.w3.org/2000/svg"/>'}),
    output(EXPLORER, {}),
    output(EXPLORER, {"name": None, "knobs": [None]}),
]


@pytest.fixture
def notebook(lab, open_notebook):
    """Stored outputs that no kernel of ours has made."""
    cells = [new_code_cell(f"{number}", outputs=[one]) for number, one in enumerate(HOSTILE + BROKEN)]
    cells.append(new_markdown_cell("**Predict.**", metadata={"dpbook_prediction": MARKUP}))
    cells.append(new_code_cell("1", outputs=[new_output("stream", text="1")]))
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), lab.directory / "stranger.ipynb")
    return open_notebook("stranger.ipynb")


def test_nothing_in_it_runs_and_what_cannot_be_shown_says_so(notebook):
    player = notebook.output(0).locator(".dpbook-player")
    for name in ("Next", "Next", "Previous", "First", "Last", "Play"):
        player.get_by_role("button", name=name).click()
        player.locator("img").click()
    expect(player.locator("img")).to_have_attribute("alt", MARKUP)
    for number in range(1, len(HOSTILE)):
        notebook.output(number).get_by_role("slider").press("ArrowRight")
        expect(notebook.output(number).get_by_role("status")).to_contain_text("run from the top")
    for number in range(len(HOSTILE), len(HOSTILE + BROKEN)):
        expect(notebook.output(number)).to_contain_text("Javascript Error")
        expect(notebook.output(number).get_by_role("button")).to_have_count(0)
    expect(notebook.panel.locator(".dpbook-predicted")).to_have_text(f"You predicted: {MARKUP}")
    assert notebook.page.evaluate("window.harmed") is None
    a_picture_that_does_not_say_how_wide_it_is_is_seen(notebook)


def a_picture_that_does_not_say_how_wide_it_is_is_seen(notebook):
    assert notebook.output(3).locator("img").bounding_box()["width"] == 1
