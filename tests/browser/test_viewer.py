"""Can a reader step through a schedule in JupyterLab, with the keyboard alone and with the mouse?"""

import re
import statistics

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dpbook.app.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")

CELL = "from dpbook import figures\nfrom dpbook.collectives import ring\n\nfigures.play(ring(4))"
CONTROLS = ["First", "Previous", "Play", "Next", "Last"]
CHAPTER = "chapters/05_all_reduce.ipynb"
expect = playwright.expect


def first_viewer(notebook):
    """The first output with a viewer in a notebook, once all of it has run."""
    notebook.run_all()
    assert notebook.errors() == []
    return notebook.panel.locator(".jp-OutputArea-child:has(svg[data-round])").first


@pytest.fixture
def viewer(lab, open_notebook):
    """In a notebook of our own."""
    notebook = new_notebook(cells=[new_code_cell(CELL)], metadata={"kernelspec": KERNELSPEC})
    nbformat.write(notebook, lab.directory / "viewer.ipynb")
    return first_viewer(open_notebook("viewer.ipynb"))


def expect_round(viewer, number):
    picture = viewer.locator("svg[data-round]")
    expect(picture).to_have_attribute("data-round", str(number))
    title = f"Round {number} of" if number else "Before round 1 of"
    expect(picture).to_have_attribute("aria-label", re.compile(re.escape(title)))


def rounds(viewer):
    return int(viewer.get_by_role("slider").get_attribute("aria-valuemax").split(".")[0])


def test_the_viewer_is_shown_once_and_every_control_has_a_name(viewer):
    expect(viewer.locator("svg[data-round]")).to_have_count(1)
    expect(viewer.locator("img")).to_have_count(0)
    assert [b.inner_text().strip() for b in viewer.get_by_role("button").all() if b.is_visible()] == CONTROLS
    expect(viewer.get_by_role("slider")).to_have_count(1)
    expect_round(viewer, 0)


def test_the_viewer_of_a_chapter_answers_too(open_notebook):
    viewer = first_viewer(open_notebook(CHAPTER))
    test_the_viewer_is_shown_once_and_every_control_has_a_name(viewer)
    test_the_slider_is_moved_by_arrow_keys(viewer)
    test_no_text_leaves_the_picture(viewer)


def test_the_slider_is_moved_by_arrow_keys(viewer):
    slider = viewer.get_by_role("slider")
    slider.focus()
    for number in (1, 2, 3):
        slider.press("ArrowRight")
        expect_round(viewer, number)
    slider.press("ArrowLeft")
    expect_round(viewer, 2)
    slider.press("End")
    expect_round(viewer, rounds(viewer))
    slider.press("Home")
    expect_round(viewer, 0)


def test_tab_reaches_every_control_in_order_and_enter_presses_it(viewer):
    viewer.get_by_role("button", name="First").focus()
    page = viewer.page
    for name in CONTROLS:
        assert page.evaluate("document.activeElement.innerText").strip() == name
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "slider"
    for _ in range(2):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # Next
    expect_round(viewer, 1)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Last
    expect_round(viewer, rounds(viewer))


def test_the_mouse_steps_and_drags(viewer):
    for name, number in (("Next", 1), ("Next", 2), ("Previous", 1), ("Last", rounds(viewer)), ("First", 0)):
        viewer.get_by_role("button", name=name).click()
        expect_round(viewer, number)
    viewer.get_by_role("slider").drag_to(
        viewer.locator(".noUi-target"), target_position={"x": 1000, "y": 5}, force=True
    )
    expect_round(viewer, rounds(viewer))


def test_play_runs_to_the_end_unless_it_is_paused(viewer):
    picture = viewer.locator("svg[data-round]")
    viewer.get_by_role("button", name="Play").click()
    expect(picture).not_to_have_attribute("data-round", "0")
    viewer.get_by_role("button", name="Pause").click()
    expect(viewer.get_by_role("button", name="Play")).to_be_visible()  # the kernel knows
    viewer.page.wait_for_timeout(500)  # for a picture that was on its way
    stopped = int(picture.get_attribute("data-round"))
    assert stopped < rounds(viewer)
    viewer.page.wait_for_timeout(2500)  # two intervals
    expect_round(viewer, stopped)
    viewer.get_by_role("button", name="Play").click()
    expect_round(viewer, rounds(viewer))
    expect(viewer.get_by_role("button", name="Play")).to_be_visible()


def test_no_text_leaves_the_picture(viewer):
    slider = viewer.get_by_role("slider")
    slider.focus()
    for number in range(1, rounds(viewer) + 1):
        slider.press("ArrowRight")
        expect_round(viewer, number)
        outside = viewer.locator("svg[data-round]").evaluate(
            "svg => { const box = svg.getBoundingClientRect(); return [...svg.querySelectorAll('text')].filter(t => {"
            "const b = t.getBoundingClientRect(); return b.left < box.left || b.right > box.right || "
            "b.top < box.top || b.bottom > box.bottom; }).map(t => t.textContent); }"
        )
        assert outside == []


CLOCK = """viewer => {
    window.keyed = []; let pressed = 0;
    viewer.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(changes => {
        if (changes.some(c => [...c.addedNodes].some(n => n.matches && n.matches('svg[data-round]'))))
            requestAnimationFrame(() => keyed.push(performance.now() - pressed));
    }).observe(viewer, {childList: true, subtree: true});
}"""


def test_the_time_from_key_to_picture_is_measured(viewer, record_property):
    """From the key to the frame that shows the new picture, by the page's clock. Printed, not judged."""
    viewer.evaluate(CLOCK)
    slider = viewer.get_by_role("slider")
    slider.focus()
    forth = range(1, rounds(viewer) + 1)
    for key, number in [("ArrowRight", n) for n in forth] + [("ArrowLeft", n - 1) for n in reversed(forth)]:
        slider.press(key)
        expect_round(viewer, number)
    times = viewer.page.evaluate("keyed")
    assert len(times) == 2 * len(forth)
    record_property("median_ms", round(statistics.median(times)))
    print(f"\nkey to picture: median {statistics.median(times):.0f} ms of {len(times)} keys")
