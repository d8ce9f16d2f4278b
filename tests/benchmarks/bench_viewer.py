"""How long from a key or a click to the picture, in JupyterLab and on the pages of the book, in Chromium?

    python tests/benchmarks/bench_viewer.py [--repeats 50]

By the page's own clock, from the event to the frame that shows the new picture.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Locator, expect, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dpbook.app.notebooks.validation import KERNELSPEC  # noqa: E402
from dpbook.app.site import build, find_chromium  # noqa: E402
from dpbook.core import checkout  # noqa: E402
from tests.benchmarks.rows import Row, begin, show  # noqa: E402
from tests.browser.jupyterlab import FLAGS, Notebook, serve  # noqa: E402

SETUP = """from dpbook import figures
from dpbook.book import ch07, ch11, ch13
from dpbook.collectives import ring
from dpbook.overlap import STRATEGIES, equal_layers, simulate_step
layers = equal_layers(12, 0.01, 0.02, 12)
ways = {name: STRATEGIES[name](layers) for name in ("naive", "hook")}
timelines = {name: simulate_step(layers, way, lambda nbytes: 0.0005 * nbytes) for name, way in ways.items()}"""
PLAYERS = ["figures.play(ring(4))", "figures.play(ring(8))", "figures.play_race(timelines)"]
EXPLORERS = ["ch07.explore_savings()", "ch13.explore_memory()", "ch13.explore_scaling()", "ch11.explore_wire()"]
CLOCK = """(host, kind) => {
    window.taken = []; let begun = null;
    host.addEventListener(kind, () => { begun = performance.now(); }, true);
    window.watch?.disconnect();
    window.watch = new MutationObserver(() => {
        if (begun === null) return; // the kernel's picture takes the place of the film's, which is the same
        const since = begun;
        begun = null;
        requestAnimationFrame(() => taken.push(performance.now() - since));
    });
    watch.observe(host.querySelector('.picture'), {childList: true, subtree: true, attributes: true});
}"""


def player(host: Locator, kind: str, repeats: int) -> list[float]:
    """Step by a key or by a click, from the first state on; the milliseconds of each step."""
    last = int(host.get_by_role("slider").get_attribute("max"))
    host.evaluate(CLOCK, "keydown" if kind == "key" else "click")
    times: list[float] = []
    while len(times) < repeats:
        host.get_by_role("button", name="First").click()
        expect(host).to_have_attribute("data-at", "0")
        host.page.evaluate("taken.length = 0")
        for to in range(1, last + 1):
            if kind == "key":
                host.page.keyboard.press("ArrowRight")
            else:
                host.get_by_role("button", name="Next").click()
            expect(host).to_have_attribute("data-at", str(to))
            host.page.wait_for_function("to => taken.length >= to", arg=to)
        times += host.page.evaluate("taken")
    return times[:repeats]


def explorer(host: Locator, kind: str, repeats: int) -> list[float]:
    """Turn the last knob to and fro by a key, or drag it from end to end: then each picture on the way counts."""
    host.evaluate(CLOCK, "input")
    knob = host.get_by_role("slider").last
    knob.scroll_into_view_if_needed()
    times: list[float] = []
    for turn in range(repeats) if kind == "key" else range(4):
        if kind == "key":
            knob.press("Home" if knob.input_value() == knob.get_attribute("max") else "End")
        else:
            drag(knob, turn % 2 == 0)
        expect(host).to_have_attribute("aria-busy", "false")  # what is shown is stored
        times = host.page.evaluate("taken")
    return times


def drag(knob: Locator, forth: bool) -> None:
    bar = knob.bounding_box()
    ends = [(bar["x"] + 6, bar["y"] + bar["height"] / 2), (bar["x"] + bar["width"] - 6, bar["y"] + bar["height"] / 2)]
    begin, end = ends if forth else ends[::-1]
    knob.page.mouse.move(*begin)
    knob.page.mouse.down()
    knob.page.mouse.move(*end, steps=30)
    knob.page.mouse.up()


def on_pages(browser: Browser, folder: Path, repeats: int) -> None:
    """Show rows for the first player and the first figure with knobs of two chapters' pages each."""
    build(checkout.root(), folder)
    for name, measure in (("05_all_reduce", player), ("07_naive_and_overlapped", player), *EXPLORING):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto((folder / "chapters" / f"{name}.html").as_uri())
        while page.locator("button.plain").count():  # what answers a question is hidden until it is skipped
            page.locator("button.plain").first.click()
        kind_of_figure = "player" if measure is player else "explorer"
        page.locator(f".{kind_of_figure}").first.scroll_into_view_if_needed()
        host = page.locator(f".dpbook-{kind_of_figure}").first
        for kind in ("key", "pointer"):
            what = f"page {name[:2]}, {kind_of_figure}: {kind} to new picture"
            show(
                Row(what, measure(host, kind, repeats), "ms", at_most=16.0, headline=kind == "key" and name[:2] == "05")
            )
        page.close()


EXPLORING = (("08_buckets", explorer), ("13_scaling_wall", explorer))


def main() -> None:
    repeats = begin(__doc__, 50)
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as server, sync_playwright() as playwright:
        made = new_notebook(
            cells=[*map(new_code_cell, [SETUP, *PLAYERS, *EXPLORERS])], metadata={"kernelspec": KERNELSPEC}
        )
        nbformat.write(made, server.directory / "bench.ipynb")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        notebook = Notebook(browser.new_page(viewport={"width": 1400, "height": 1000}), server, "bench.ipynb").open()
        notebook.run_all()
        for number, what in enumerate([*PLAYERS, *EXPLORERS], start=1):
            host = notebook.output(number).locator(".dpbook-player, .dpbook-explorer")
            measure = player if what in PLAYERS else explorer
            for kind in ("key", "pointer"):
                show(Row(f"{what}: {kind} to new picture", measure(host, kind, repeats), "ms", at_most=16.0))
        on_pages(browser, Path(folder) / "book", repeats)
        browser.close()


if __name__ == "__main__":
    main()
