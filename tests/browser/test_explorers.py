"""Can a reader turn every knob of every figure in JupyterLab with the keyboard alone, and is it drawn anew?"""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC
from dpbook.figures.card.viewer import EXPLORER_MIME

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

SETUP = """import numpy as np
from dpbook import figures
from dpbook.book import ch07, ch11, ch12, ch13, ch16
from dpbook.collectives import AlphaBeta
from dpbook.book.ch08 import mlp
from dpbook.overlap import layers_of, naive_flat, simulate_step
from dpbook.replicas import Exact

layers, price = layers_of(mlp(8, 512), 0.01), AlphaBeta(1e-4, 1e-9)"""
STEPPER = "figures.play_step(simulate_step(layers, naive_flat(layers), price))"
RACE = """entry = ch16.Entry(Exact(), [1.0], seconds=0.05)
falling = np.linspace(1, 0.1, 12)[:, None]
raced = {"exact": ch16.Raced(entry, np.ones((1, 1)), falling, np.full(96, 1e4), np.full(96, 6.0))}
slower = {"exact": ch16.Raced(entry, np.ones((1, 1)), 1.5 * falling, np.full(96, 1e4), np.full(96, 6.0))}
ch16.explore_race({4: raced, 8: slower}, 1e6, "Ethernet 25 Gb/s")"""
EXPLORERS = {  # what its cell holds, and the knobs by their labels
    "ch07.explore_savings()": ["computation", "communication", "buckets"],
    "figures.explore_buckets(layers, price)": ["bucket cap"],
    "ch13.explore_memory()": ["GPUs", "model", "GPU", "recipe"],
    "ch13.explore_scaling()": [
        *("model", "nodes", "tokens of a step", "micro-batches", "all-reduce, unsharded", "sharding", "gradients"),
        *("a copy is cut over", "bucket cap", "GPU", "GPUs of a node", "network per port"),
        *("share of the peak", "share of the wires"),
    ],
    RACE: ["link", "ranks"],
    "ch11.explore_wire()": ["trained", "gradients", "micro-batches", "no_sync", "GPUs", "model"],
}
DIAGNOSIS = """from dpbook.overlap import read_profiles, recorded_traces
ch12.play_diagnosis(read_profiles(recorded_traces(), step=10))"""
CELLS = [SETUP, *EXPLORERS, STEPPER, DIAGNOSIS]


@pytest.fixture
def run(lab, open_notebook):
    """A function that runs cells from top to bottom, in a notebook of their own."""

    def run(*cells):
        made = new_notebook(cells=list(map(new_code_cell, cells)), metadata={"kernelspec": KERNELSPEC})
        nbformat.write(made, lab.directory / "explorers.ipynb")
        notebook = open_notebook("explorers.ipynb")
        notebook.run_all()
        assert notebook.errors() == []
        return notebook

    return run


def test_knobs_turn_and_the_figure_follows_while_there_is_a_kernel(run):
    notebook = run("from dpbook.book import ch07", "ch07.explore_savings()")
    a_narrower_page_shows_the_whole_picture(notebook.output(1))
    turn_all(notebook.output(1).locator(".dpbook-explorer"))
    a_dragged_knob_ends_at_the_picture_of_its_place(notebook.output(1))


@pytest.mark.proof
def test_every_knob_of_every_figure_turns(run):
    notebook = run(*CELLS)
    for number, labels in enumerate(EXPLORERS.values(), start=1):
        explorer = notebook.output(number).locator(".dpbook-explorer")
        assert [knob.get_attribute("aria-label") for knob in explorer.get_by_role("slider").all()] == labels
        turn_all(explorer)
    the_players_move(notebook)


def a_narrower_page_shows_the_whole_picture(output):
    """Smaller, down to 640 pixels; below that one scrolls. 900 pixels are what it is drawn in."""
    usual = output.page.viewport_size
    for width, image_wide in ((1100, "640 < wide && wide < 900"), (700, "wide === 640")):
        output.page.set_viewport_size({**usual, "width": width})
        shown = f"""box => {{
            const wide = box.querySelector("img").getBoundingClientRect().width;
            return {image_wide} && (box.scrollWidth > box.clientWidth) === {str(width == 700).lower()};
        }}"""
        output.page.wait_for_function(shown, arg=output.locator(".picture").element_handle())
    output.page.set_viewport_size(usual)


def turn_all(explorer):
    """Turn each knob by an arrow key, from wherever it stands, wait for its picture, and for the rest at the end."""
    picture = explorer.locator(".picture")
    expect(picture.locator("img")).to_be_visible()
    for knob in explorer.get_by_role("slider").all():
        before = picture.locator("img").get_attribute("src")
        knob.focus()
        at_end = knob.input_value() == knob.get_attribute("max")
        knob.press("ArrowLeft" if at_end else "ArrowRight")
        expect(picture.locator("img")).not_to_have_attribute("src", before)
    expect(explorer).to_have_attribute("aria-busy", "false")  # the kernel has answered


def a_dragged_knob_ends_at_the_picture_of_its_place(output):
    """Buckets, from one end to the other: the knob follows at once, the picture at most one drawing later."""
    page, knob = output.page, output.get_by_role("slider", name="buckets")
    knob.scroll_into_view_if_needed()
    bar = knob.bounding_box()
    height = bar["y"] + bar["height"] / 2
    page.mouse.move(bar["x"] + 4, height)
    page.mouse.down()
    page.mouse.move(bar["x"] + bar["width"] - 4, height, steps=40)
    assert knob.get_attribute("aria-valuetext") == "50"
    page.mouse.up()
    expect(output.locator("img")).to_have_attribute("alt", re.compile("^With 50 buckets"))


def the_players_move(notebook):
    for cell, first, last in (
        (STEPPER, "the step begins", "The step took"),
        (DIAGNOSIS, "A slow network?", "The bytes need"),
    ):
        player = notebook.output(CELLS.index(cell)).locator(".dpbook-player")
        expect(player.locator("img")).to_have_attribute("alt", re.compile(re.escape(first)))
        player.get_by_role("slider").press("End")
        expect(player.locator("img")).to_have_attribute("alt", re.compile(re.escape(last)))


@pytest.mark.proof
def test_what_was_turned_is_still_seen_after_reopening(run):
    """With its kernel it turns; after a restart and without a kernel it does, too, since it is one of the book's."""
    notebook = run("from dpbook.book import ch07", "ch07.explore_savings()")
    explorer = notebook.output(1).locator(".dpbook-explorer")
    a_dragged_knob_ends_at_the_picture_of_its_place(notebook.output(1))
    save_what_is_seen(notebook, explorer)
    a_knob_turned_before_the_page_knows_its_kernel_turns(notebook, explorer)
    a_knob_turned_back_is_stored_where_it_was(notebook, explorer)
    turn_all(explorer)
    restart(notebook)
    turn_all(explorer)
    shut_down(notebook)
    turn_all(explorer)
    expect(explorer.get_by_role("status")).to_have_text("")


def restart(notebook):
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.get_by_role("button", name="Confirm Kernel Restart").click()
    notebook.wait_until_idle()


def shut_down(notebook):
    notebook.menu("Kernel", "Shut Down Kernel")
    expect(notebook.panel.get_by_text("No Kernel")).to_be_visible()


@pytest.mark.proof
def test_a_figure_of_a_readers_own_says_without_its_kernel_what_to_do_and_that_works(run):
    setup, shown = OWN.rsplit("\n\n", 1)
    notebook = run(setup, shown)
    explorer = notebook.output(1).locator(".dpbook-explorer")
    turn_all(explorer)
    restart(notebook)
    expect_words(explorer, "run from the top: select this cell, choose Run, Run All Above Selected Cell")
    notebook.cell(1).locator(".jp-InputPrompt").click()
    notebook.menu("Run", "Run All Above Selected Cell")
    notebook.menu("Run", "Run Selected Cell")
    notebook.wait_until_idle()
    turn_all(explorer)
    shut_down(notebook)
    expect_words(explorer, "No kernel is running")


def a_knob_turned_before_the_page_knows_its_kernel_turns(notebook, explorer):
    """Opened again on a busy machine: the server's answer comes after the cells are there."""
    page, knob = notebook.page, explorer.get_by_role("slider", name="buckets")

    def from_now_on(route):
        page.route("**/api/sessions*", lambda request: None)  # held back
        route.continue_()

    page.route("**/explorers.ipynb?type=notebook*", from_now_on)
    notebook.load()
    expect(explorer.locator("img")).to_have_attribute("alt", re.compile("^With 50 buckets"))
    knob.press("ArrowLeft")
    expect(explorer.get_by_role("status")).to_contain_text("busy")
    page.unroute_all()  # they go on
    expect(explorer.locator("img")).to_have_attribute("alt", re.compile("^With 20 buckets"))
    knob.press("ArrowRight")
    expect(explorer.locator("img")).to_have_attribute("alt", re.compile("^With 50 buckets"))
    save_what_is_seen(notebook, explorer)


def a_knob_turned_back_is_stored_where_it_was(notebook, explorer):
    """A state that was stored on the way differs from the final one."""
    for key, buckets in ("ArrowLeft", "20"), ("ArrowRight", "50"):
        explorer.get_by_role("slider", name="buckets").press(key)
        expect(explorer.locator("img")).to_have_attribute("alt", re.compile(f"^With {buckets} buckets"))
        save_what_is_seen(notebook, explorer)
        stored = nbformat.read(notebook.server.directory / notebook.path, nbformat.NO_CONVERT)
        assert f"With {buckets} buckets" in stored.cells[1].outputs[0].data[EXPLORER_MIME]["figure"]


def save_what_is_seen(notebook, explorer):
    """Save it when the knobs have come to rest and their picture is stored."""
    expect(explorer).to_have_attribute("aria-busy", "false")
    notebook.save()


def expect_words(explorer, words):
    """The knob goes back to the place of the picture, which stays."""
    knob, seen = explorer.get_by_role("slider").first, explorer.locator("img").get_attribute("src")
    place = knob.input_value()
    knob.focus()
    knob.press("ArrowLeft")
    expect(explorer.get_by_role("status")).to_contain_text(words)
    expect(knob).to_have_value(place)
    assert explorer.locator("img").get_attribute("src") == seen


OWN = """import time

from dpbook.figures import Explorer, Knob, Picture

def draw(seconds):
    time.sleep(seconds)
    return Picture(90, 90, [], f"after {seconds} s")

Explorer(draw, [Knob("seconds", "seconds", {"0": 0, "0.1": 0.1, "100": 100})])"""


@pytest.mark.proof
def test_a_slow_drawing_is_waited_for_in_its_notebook_alone_and_until_it_is_interrupted(run):
    notebook = run(OWN)
    a_view_of_the_output_alone_says_where_the_knobs_turn(notebook)
    a_drawing_that_is_interrupted_is_not_waited_for(notebook)


def a_drawing_that_is_interrupted_is_not_waited_for(notebook):
    explorer = notebook.output(0).locator(".dpbook-explorer")
    knob = explorer.get_by_role("slider")
    knob.press("End")
    expect(explorer.get_by_role("status")).to_contain_text("busy")
    notebook.menu("Kernel", "Interrupt Kernel")
    expect(explorer.get_by_role("status")).to_contain_text("did not answer")
    expect(knob).to_have_value("0")
    knob.press("ArrowLeft")
    knob.press("End")
    expect(explorer.get_by_role("status")).to_contain_text("busy")


def a_view_of_the_output_alone_says_where_the_knobs_turn(notebook):
    notebook.output(0).locator("img").click(button="right")
    notebook.page.get_by_role("menuitem", name="Create New View for Cell Output").click()
    alone = notebook.page.locator(".jp-LinkedOutputView .dpbook-explorer")
    alone.get_by_role("slider").press("End")
    expect(alone.get_by_role("status")).to_contain_text("in the notebook itself")
    notebook.page.get_by_role("tab", name="explorers.ipynb").click()
