"""Can a reader turn every knob of every figure in JupyterLab with the keyboard alone, and how fast is it drawn anew?"""

import re
import statistics

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from dpbook.app.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

SETUP = """from dpbook import figures
from dpbook.book import ch11, ch12, ch13
from dpbook.collectives import AlphaBeta
from dpbook.book.ch08 import mlp
from dpbook.overlap import layers_of, naive_flat, simulate_step

layers, price = layers_of(mlp(8, 512), 0.01), AlphaBeta(1e-4, 1e-9)"""
STEPPER = "figures.play_step(simulate_step(layers, naive_flat(layers), price))"
EXPLORERS = {  # what its cell holds, the knobs by their labels, and what a picture is
    "figures.explore_savings()": (["computation", "communication", "buckets"], "svg"),
    "figures.explore_buckets(layers, price)": (["bucket cap"], "svg"),
    "ch13.explore_memory()": (["GPUs", "model", "GPU", "recipe"], "img"),
    "ch13.explore_scaling()": (
        [
            *("model", "nodes", "tokens of a step", "micro-batches", "all-reduce, unsharded", "sharding", "gradients"),
            *("a copy is cut over", "bucket cap", "GPU", "GPUs of a node", "network per port"),
            *("share of the peak", "share of the wires"),
        ],
        "img",
    ),
    "ch11.explore_wire()": (["trained", "gradients", "micro-batches", "no_sync", "GPUs", "model"], "img"),
}
DIAGNOSIS = """from dpbook.overlap import read_profiles, recorded_traces
ch12.play_diagnosis(read_profiles(recorded_traces(), step=10))"""
CELLS = [SETUP, *EXPLORERS, STEPPER, DIAGNOSIS]
CLOCK = """figure => {
    window.keyed = []; let pressed = 0;
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(() => requestAnimationFrame(() => keyed.push(performance.now() - pressed)))
        .observe(figure, {childList: true, subtree: true});
}"""


@pytest.fixture
def notebook(lab, open_notebook):
    """All of them in one notebook, run from top to bottom."""
    made = new_notebook(cells=list(map(new_code_cell, CELLS)), metadata={"kernelspec": KERNELSPEC})
    nbformat.write(made, lab.directory / "explorers.ipynb")
    notebook = open_notebook("explorers.ipynb")
    notebook.run_all()
    assert notebook.errors() == []
    return notebook


def figure(output):
    """The HTML widget that holds the picture: the first of its box."""
    return output.locator(".widget-html-content").first


def test_every_knob_turns_by_keyboard_and_the_figure_follows(notebook, record_property):
    for number, (cell, (labels, kind)) in enumerate(EXPLORERS.items(), start=1):
        output = notebook.output(number)
        expect(figure(output).locator(kind).first).to_be_visible()
        shown = list(filter(None, map(str.strip, output.locator(".widget-label").all_inner_texts())))
        assert shown == labels
        times = turn_all(output)
        record_property(cell, times)
        print(f"\n{cell}: key to picture, median {statistics.median(times):.0f} ms of {len(times)} keys")


def turn_all(output):
    """Turn each knob by an arrow key, from wherever it stands; the milliseconds from each key to its picture."""
    figure(output).evaluate(CLOCK)
    for knob in output.get_by_role("slider").all():
        before = figure(output).inner_html()
        knob.focus()
        knob.press(
            "ArrowLeft" if knob.get_attribute("aria-valuenow") == knob.get_attribute("aria-valuemax") else "ArrowRight"
        )
        output.page.wait_for_function(
            "([figure, before]) => figure.innerHTML !== before", arg=[figure(output).element_handle(), before]
        )
    return output.page.evaluate("keyed")


def test_the_players_move_by_keyboard(notebook):
    step_moves(notebook.output(CELLS.index(STEPPER)))
    diagnosis_moves(notebook.output(CELLS.index(DIAGNOSIS)))


def step_moves(output):
    picture = output.locator("svg[data-event]")
    expect(picture).to_have_attribute("data-event", "0")
    output.get_by_role("slider").focus()
    for number in (1, 2, 3):
        output.get_by_role("slider").press("ArrowRight")
        expect(picture).to_have_attribute("data-event", str(number))
    output.get_by_role("slider").press("End")
    expect(picture).to_have_attribute("aria-label", re.compile("^The step took"))


def diagnosis_moves(output):
    picture = output.locator("svg[data-look]")
    for number in range(3):
        expect(picture).to_have_attribute("data-look", str(number))
        output.get_by_role("slider").focus()
        output.get_by_role("slider").press("ArrowRight")
