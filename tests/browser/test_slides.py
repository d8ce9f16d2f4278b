"""Do slides turn by keys and mouse, fit the screen, hide the answer, and print, without the network?"""

import re

import pytest

from dpbook.classroom import write_slides
from dpbook.core import checkout

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

CUT_OFF = """() => { const content = document.querySelector(".here .content");
    return content.scrollHeight - content.clientHeight > 1 || content.scrollWidth - content.clientWidth > 1; }"""


@pytest.fixture(scope="module")
def page(chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    yield page
    page.close()


def opened(page, name, folder):
    (notebook,) = (checkout.root() / "chapters").glob(f"{name}_*.ipynb")
    page.goto(write_slides(notebook, folder).as_uri())
    return page.locator(".slide").count()


def turn(page, key, place):
    """A page learns of the place in its address a moment after the key."""
    page.keyboard.press(key)
    expect(page.locator(".slide.here")).to_have_id(f"s{place}")


@pytest.mark.parametrize("name", ["00", "05", pytest.param("13", marks=pytest.mark.proof)])
def test_no_slide_is_cut_off_and_each_prints_on_a_page(page, name, tmp_path):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    number, cut = opened(page, name, tmp_path), []
    for place in range(1, number + 1):
        cut += [place] if page.evaluate(CUT_OFF) else []
        turn(page, "ArrowRight", min(place + 1, number))
    assert cut == []
    assert page.url.endswith(f"#s{number}")
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == number


def test_an_answer_is_not_seen_before_its_slide(page, tmp_path):
    places = range(2, opened(page, "05", tmp_path) + 1)
    for place in places:
        turn(page, "ArrowRight", place)
        if page.locator(".question.here").count():
            break
    assert page.locator(".slide:visible").count() == 1
    page.mouse.click(1000, 300)
    expect(page.locator(".answer.here")).to_be_visible()
    page.mouse.click(100, 300)
    expect(page.locator(".question.here")).to_be_visible()
    turn(page, "Home", 1)
    assert page.locator(".title.here").count() == 1
