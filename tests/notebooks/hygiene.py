"""Rules for published notebooks. A check takes a notebook (parsed JSON) and returns complaints."""

import functools
import math
import re
import statistics
from collections import Counter

from dpbook.core import checkout
from dpbook.figures.card import viewer
from tests.notebooks.claims import unclaimed

MACHINE_PATH = re.compile(r"(?<![\w.$}~/:-])/((home|tmp|work|Users)/\w|root\b)|\b[A-Z]:\\\w")
DATA_URI = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]*")
NO_ALT = re.compile(r"<img\b(?![^>]*\balt=(\"[^\"]|'[^']))[^>]*>", re.IGNORECASE)
NBVAL = re.compile(r"# *(NBVAL_IGNORE_OUTPUT|PYTEST_VALIDATE_IGNORE_OUTPUT)\b")
ANSWER = re.compile(r"^<details>.*?(?:</details>|\n\n)", re.DOTALL | re.MULTILINE)  # a blank line ends a block of HTML
MARKDOWN = re.compile(r"`|\*\w|\w\*|\]\(")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MOST_BYTES_OF_FRAMES = 1_000_000


def text(source):
    """Notebooks store text as a string or as a list of lines."""
    return source if isinstance(source, str) else "".join(source)


def tags(cell):
    return cell["metadata"].get("tags", [])


def compared(cell):
    """Whether validation compares what the cell shows. A comment can tell nbval not to, too."""
    return not {"measurement", "nbval-ignore-output"} & {*tags(cell)} and not NBVAL.search(text(cell["source"]))


def code_cells(notebook):
    """Number and cell of every code cell that holds code."""
    return [(n, c) for n, c in enumerate(notebook["cells"]) if c["cell_type"] == "code" and text(c["source"]).strip()]


def lines(cell):
    return sum(bool(line.strip()) for line in text(cell["source"]).splitlines())


def bundles(notebook):
    """Cell number, kind and text of everything stored as an output, pictures left out."""
    for number, cell in code_cells(notebook):
        for output in cell["outputs"]:
            if "text" in output:
                yield number, "text/plain", text(output["text"])
            if "traceback" in output:
                yield number, "text/plain", "\n".join(output["traceback"])
            for kind, data in output.get("data", {}).items():
                if isinstance(data, str | list) and not kind.startswith("image/"):
                    yield number, kind, text(data)


def unexecuted(notebook):
    return [
        f"cell {n} was never executed"
        for n, cell in code_cells(notebook)
        if cell["execution_count"] is None and "nbval-skip" not in tags(cell)
    ]


def stored_errors(notebook):
    return [
        f"cell {n} stores an error: {output['ename']}"
        for n, cell in code_cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "error" and "raises-exception" not in tags(cell)
    ]


def standard_error(notebook):
    return [
        f"cell {n} writes to standard error"
        for n, cell in code_cells(notebook)
        for output in cell["outputs"]
        if output.get("name") == "stderr"
    ]


def widget_state(notebook):
    """A widget is gone when the notebook is opened again, and an error stands in its place."""
    found = ["the metadata hold widget state"] if "widgets" in notebook["metadata"] else []
    return found + [
        f"cell {n} stores a widget's view"
        for n, cell in code_cells(notebook)
        for output in cell["outputs"]
        if WIDGET_VIEW in output.get("data", {})
    ]


def films(notebook):
    """Number, SVG and page of every player that is stored."""
    for number, cell in code_cells(notebook):
        for output in cell["outputs"]:
            if viewer.PLAYER_MIME in output.get("data", {}):
                yield number, output["data"][viewer.PLAYER_MIME]["svg"], text(output["data"]["text/html"])


def heavy_players(notebook):
    frames = sum(len(svg.encode()) for _, svg, _ in films(notebook))
    return [f"{frames:,} bytes of frames" for _ in range(frames > MOST_BYTES_OF_FRAMES)]


def old_players(notebook):
    """The script that each player carries for pages without the extension must be today's."""
    script = (viewer.EXTENSION / "player.js").read_text(encoding="utf-8")
    return [
        f"cell {n} carries an old player.js: dpbook validate --write"
        for n, _, page in films(notebook)
        if script not in page
    ]


def machine_paths(notebook):
    sources = [(n, text(cell["source"])) for n, cell in enumerate(notebook["cells"])]
    outputs = [(n, found) for n, _, found in bundles(notebook)]
    return [
        f"cell {n} names a path of one machine: {match[0]}"
        for n, found in sources + outputs
        if (match := MACHINE_PATH.search(DATA_URI.sub("", found)))
    ]


def cell_ids(notebook):
    ids = [cell.get("id") for cell in notebook["cells"]]
    missing = [f"cell {n} has no id" for n, name in enumerate(ids) if not name]
    return missing + [f"{count} cells have the id {name}" for name, count in Counter(ids).items() if name and count > 1]


def bitmaps(notebook):
    """A bitmap is never compared, stays light on a dark page, and has no alternative text in JupyterLab."""
    return [
        f"cell {n} shows a bitmap: draw it as SVG"
        for n, cell in code_cells(notebook)
        for output in cell["outputs"]
        if {"image/png", "image/jpeg"} & set(output.get("data", {}))
    ]


def printed_errors(notebook):
    """Complain about an error in a cell whose output is not compared: nobody would see it."""
    return [
        f"cell {n} is not compared, and shows an error"
        for n, cell in code_cells(notebook)
        if not compared(cell) and "raises-exception" not in tags(cell)
        for output in cell["outputs"]
        if output["output_type"] == "error" or "Traceback (most recent call last)" in text(output.get("text", ""))
    ]


def pictures_without_words(notebook):
    markdown = [(n, text(c["source"])) for n, c in enumerate(notebook["cells"]) if c["cell_type"] == "markdown"]
    html = [(n, found) for n, kind, found in bundles(notebook) if kind == "text/html"]
    return [f"cell {n} shows a picture without alt text" for n, found in markdown + html if NO_ALT.search(found)] + [
        f"cell {n} shows a picture without alt text" for n, found in markdown if re.search(r"!\[\s*\]\(", found)
    ]


def titles(notebook):
    """JupyterLab's table of contents takes each heading of the first level for a title."""
    prose = [FENCED.sub("", text(c["source"])) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    levels = [re.findall(r"^# .+", words, re.MULTILINE) for words in prose]
    return [] if [len(found) for found in levels if found] == [1] else [f"it needs one title: {levels}"]


def marks_in_answers(notebook):
    """Markdown inside a block of HTML stays as it is typed: write <code> and <em>."""
    return [
        f"cell {n} shows {mark[0]!r} in its answer"
        for n, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "markdown"
        for answer in ANSWER.findall(text(cell["source"]))
        if (mark := MARKDOWN.search(answer))
    ]


def measurements(notebook):
    return [
        f"cell {n} measures: {problem}"
        for n, cell in code_cells(notebook)
        if "measurement" in tags(cell)
        for problem, wrong in (
            ("it stores no output", not cell["outputs"]),
            ("it also needs the tag nbval-ignore-output", "nbval-ignore-output" not in tags(cell)),
        )
        if wrong
    ]


def interactions(notebook):
    """Complain about cells with widgets that store an output, or that nothing calls in validation without a page."""
    return [
        f"cell {n} has widgets: {problem}"
        for n, cell in code_cells(notebook)
        if "interact" in tags(cell) or "interact(" in text(cell["source"])
        for problem, wrong in (
            ("it needs the tags interact and nbval-ignore-output", {"interact", "nbval-ignore-output"} - {*tags(cell)}),
            ("it stores an output, which is empty without a kernel", cell["outputs"]),
            ("no assert calls its function, whose errors a widget hides", "assert" not in text(cell["source"])),
        )
        if wrong
    ]


def unheld(notebook):
    """Complain about output that is not compared without a claim; a reader's own (``yours``, ``interact``) has none."""
    cells = code_cells(notebook)
    sources = [text(cell["source"]) for _, cell in cells]
    return [
        f"cell {n} is not compared, and no assert nearby is about what it shows: {shown}"
        for place, (n, cell) in enumerate(cells)
        if not compared(cell) and not {"yours", "interact"} & {*tags(cell)}
        if (shown := unclaimed(sources, place))
    ]


def long_cells(notebook):
    return [f"cell {n} has {lines(cell)} lines, over 20" for n, cell in code_cells(notebook) if lines(cell) > 20]


def long_lines(notebook):
    """Complain about lines of code that a page or a laptop's window cannot show whole."""
    return [
        f"cell {n} has a line of {len(line)} columns, over 120"
        for n, cell in code_cells(notebook)
        for line in text(cell["source"]).splitlines()
        if len(line) > 120
    ]


def median_length(notebook):
    median = statistics.median([lines(cell) for _, cell in code_cells(notebook)] or [0])
    return [f"the median code cell has {median} lines, over 5"] if median > 5 else []


def old_source(notebook):
    """Code that a cell prints from the library, or from a script to copy, must still be there."""
    return [
        f"cell {n} shows a line that dpbook no longer has: {line.strip()}"
        for n, cell in code_cells(notebook)
        if "print(inspect.getsource(" in text(cell["source"])
        for output in cell["outputs"]
        for line in text(output.get("text", "")).splitlines()
        if line.strip() and line not in library_lines()
    ]


@functools.cache
def library_lines():
    paths = [path for folder in ("dpbook", "scripts") for path in (checkout.root() / folder).rglob("*.py")]
    return {line for path in paths for line in path.read_text().splitlines()}


def too_much(notebook):
    return _size(notebook, (0, 40), (0, 3_500))


def too_little(notebook):
    return _size(notebook, (18, math.inf), (1_200, math.inf))


def _size(notebook, cells, words):
    prose = [
        c for c in notebook["cells"] if c["cell_type"] == "markdown" and c["id"] != "ways-on"
    ]  # its links are alike
    n_words = sum(len(DATA_URI.sub("", text(c["source"])).split()) for c in prose)
    return [
        f"{count} {what}, where {least} to {most} are wanted"
        for what, count, (least, most) in (
            ("code cells", len(code_cells(notebook)), cells),
            ("words", n_words, words),
        )
        if not least <= count <= most
    ]


EVERYWHERE = (
    stored_errors,
    standard_error,
    widget_state,
    heavy_players,
    old_players,
    machine_paths,
    cell_ids,
    pictures_without_words,
    titles,
    marks_in_answers,
    bitmaps,
    printed_errors,
    measurements,
    interactions,
)
EXECUTED = (*EVERYWHERE, unexecuted, unheld)
CHAPTER = (*EXECUTED, old_source, long_cells, long_lines, median_length, too_much)


def checks(folder, name):
    """The checks for a notebook in ``folder`` (a path inside the repository)."""
    if folder == "exercises":
        return (*EVERYWHERE, long_cells, long_lines)
    if folder == "exercises/solutions":
        return EXECUTED
    return CHAPTER if name.startswith("00_") else (*CHAPTER, too_little)
