"""Can the report of a run be read by day and by night, in a narrow window, and alone on a machine without a network?"""

import re

import pytest

from dpbook.core import palette
from dpbook.runs.report import pages
from tests.runs.report.test_report import SLOW, run

pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = run(tmp_path_factory.mktemp("runs") / "r", world=3, parts=SLOW)
    run(folder / "alone", seconds=0.1, world=1, tokens_per_step=2000)
    return pages.write(folder)


def hexadecimal(colour):
    return "#" + "".join(f"{int(channel):02x}" for channel in re.findall(r"\d+", colour)[:3])


COLOURS = """() => [...document.querySelectorAll("h1, h2, p, th, td")].filter(e => e.innerText.trim())
    .map(e => [e.innerText, getComputedStyle(e).color])"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_the_page_and_the_page_follows_the_theme(chromium, path, scheme):
    from tests.browser.jupyterlab import Watch

    context = chromium.new_context(color_scheme=scheme, viewport={"width": 900, "height": 1000})
    page = context.new_page()
    watch = Watch(page)
    page.goto(path.as_uri())
    paper = hexadecimal(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (palette.contrast(paper, "#ffffff") < 2) == (scheme == "light")
    words = page.evaluate(COLOURS)
    assert len(words) > 30
    assert [word for word, colour in words if palette.contrast(hexadecimal(colour), paper) < 4.5] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 900
    watch.assert_clean()
    context.close()
