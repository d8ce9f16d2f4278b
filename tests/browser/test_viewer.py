"""Can a reader step through a schedule in JupyterLab, by keyboard and mouse, also when the notebook is opened again?"""

import re
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC
from dpbook.collectives import ring
from dpbook.figures import play

playwright = pytest.importorskip("playwright.sync_api")

CELL = "from dpbook import figures\nfrom dpbook.collectives import ring\n\nfigures.play(ring(4))"
CONTROLS = ["First", "Previous", "Play", "Next", "Last"]
ROUNDS = 6
expect = playwright.expect


def player(notebook):
    """The first output with a player."""
    return notebook.panel.locator(".dpbook-player").first


@pytest.fixture
def notebook(lab, open_notebook):
    """A notebook of our own, run."""
    made = new_notebook(cells=[new_code_cell(CELL)], metadata={"kernelspec": KERNELSPEC})
    nbformat.write(made, lab.directory / "viewer.ipynb")
    notebook = open_notebook("viewer.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    return notebook


def expect_round(viewer, number):
    """The player says so, and the picture is that of this state."""
    expect(viewer).to_have_attribute("data-at", str(number))
    title = "Before round 1" if number == 0 else f"round {1 + (number - 1) % 3} of 3"
    expect(viewer.locator("img")).to_have_attribute("alt", re.compile(re.escape(title)))


def keyboard_works(viewer):
    viewer.get_by_role("slider").focus()
    for key, number in [
        *(("ArrowRight", n) for n in (1, 2, 3)), ("ArrowLeft", 2), ("End", ROUNDS), ("ArrowRight", ROUNDS), ("Home", 0),
    ]:  # fmt: skip
        viewer.page.keyboard.press(key)
        expect_round(viewer, number)


def test_a_reader_steps_by_keyboard_and_by_mouse(notebook, chromium):
    viewer = player(notebook)
    every_control_has_a_name(viewer)
    keyboard_works(viewer)
    tab_reaches_every_control_in_order_and_enter_presses_it(viewer)
    the_mouse_steps_drags_plays_and_pauses(viewer)
    what_is_sent_moves_and_then_has_arrived(viewer, chromium)
    no_text_leaves_the_picture(viewer, chromium)


def every_control_has_a_name(viewer):
    expect(viewer.locator("img")).to_have_count(1)
    assert [button.inner_text() for button in viewer.get_by_role("button").all()] == CONTROLS
    expect(viewer.get_by_role("slider", name="Round")).to_have_count(1)
    expect_round(viewer, 0)


def tab_reaches_every_control_in_order_and_enter_presses_it(viewer):
    page = viewer.page
    viewer.focus()
    for name in CONTROLS:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == name
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.type") == "range"
    for _ in range(2):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # Next
    expect_round(viewer, 1)
    page.keyboard.press("b")  # JupyterLab's own key, in a cell, for a new one
    expect(page.locator(".jp-NotebookPanel:visible .jp-Cell")).to_have_count(1)


def the_mouse_steps_drags_plays_and_pauses(viewer):
    viewer.get_by_role("button", name="First").click()
    viewer.get_by_role("button", name="Next").click()
    expect_round(viewer, 1)
    bar = viewer.get_by_role("slider").bounding_box()
    middle = bar["y"] + bar["height"] / 2
    viewer.page.mouse.move(bar["x"] + 2, middle)
    viewer.page.mouse.down()
    viewer.page.mouse.move(bar["x"] + bar["width"] / 2, middle, steps=4)
    expect_round(viewer, 3)
    viewer.page.mouse.up()
    viewer.get_by_role("button", name="Play").click()
    expect_round(viewer, 4)
    viewer.get_by_role("button", name="Pause").click()
    stopped = int(viewer.get_attribute("data-at"))
    viewer.page.wait_for_timeout(2500)
    expect_round(viewer, stopped)
    viewer.get_by_role("button", name="Play").click()
    expect_round(viewer, ROUNDS)
    expect(viewer.get_by_role("button", name="Play")).to_be_visible()


MOMENT = """([svg, seconds]) => {
    svg.pauseAnimations();
    svg.setCurrentTime(seconds);
    const seen = name => getComputedStyle(svg.querySelector(name)).visibility === 'visible';
    const chip = svg.querySelector('animateMotion').parentElement.getBoundingClientRect();
    return [seen('.way'), seen('.frame'), chip.x];
}"""


def what_is_sent_moves_and_then_has_arrived(viewer, chromium):
    viewer.get_by_role("button", name="First").click()
    viewer.get_by_role("button", name="Next").click()
    image = viewer.locator("img")
    expect(image).to_have_attribute("src", re.compile("animateMotion"))
    bare = chromium.new_page()
    bare.set_content(unquote(image.get_attribute("src").partition(",")[2]))
    svg = bare.locator("svg").element_handle()
    early, late, after = (bare.evaluate(MOMENT, [svg, seconds]) for seconds in (0.15, 0.45, 0.7))
    bare.close()
    assert (early[:2], late[:2], after[:2]) == ([True, False], [True, False], [False, True])
    assert early[2] < late[2]
    viewer.get_by_role("button", name="Next").click()
    viewer.get_by_role("button", name="Previous").click()
    expect_round(viewer, 1)
    expect(image).not_to_have_attribute("src", re.compile("animateMotion"))


def no_text_leaves_the_picture(viewer, chromium):
    bare = chromium.new_page()
    viewer.get_by_role("button", name="First").click()
    for number in range(ROUNDS + 1):
        expect_round(viewer, number)
        bare.set_content(unquote(viewer.locator("img").get_attribute("src").partition(",")[2]))
        outside = bare.locator("svg").evaluate(
            "svg => { const box = svg.getBoundingClientRect(); return [...svg.querySelectorAll('text')].filter(t => {"
            "const b = t.getBoundingClientRect(); return b.left < box.left || b.right > box.right || "
            "b.top < box.top || b.bottom > box.bottom; }).map(t => t.textContent); }"
        )
        assert outside == []
        viewer.get_by_role("button", name="Next").click()
    bare.close()


@pytest.mark.proof
def test_it_steps_after_every_reopening_with_a_kernel_and_without(notebook):
    notebook.save()
    notebook.reload()
    keyboard_works(player(notebook))
    notebook.menu("Kernel", "Shut Down Kernel")
    notebook.page.wait_for_timeout(500)
    keyboard_works(player(notebook))
    expect(notebook.panel.get_by_text("model not found")).to_have_count(0)


@pytest.mark.proof
def test_as_a_page_without_a_server_it_steps_and_without_scripts_it_moves(chromium):
    html = play(ring(4))._repr_mimebundle_()[0]["text/html"]
    page = chromium.new_page()
    page.set_content(html)
    keyboard_works(page.locator(".dpbook-player"))
    page.close()
    assert moves(chromium, html, "no-preference")
    assert not moves(chromium, html, "reduce")


def moves(chromium, html, motion):
    """Whether the picture of a page without scripts changes within two steps."""
    context = chromium.new_context(java_script_enabled=False, reduced_motion=motion)
    page = context.new_page()
    page.set_content(html)
    first = page.locator("img").screenshot()
    page.wait_for_timeout(1800)
    changed = page.locator("img").screenshot() != first
    context.close()
    return changed
