"""Are asserts and titles below a question covered until their cell has run, and nothing else?"""

import ast
import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC
from dpbook.core import checkout
from dpbook.figures.card.viewer import EXTENSION
from tests.notebooks.hygiene import code_cells, text

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

TITLE = 'title = "A ring of 4 has 6 rounds", "and so on for ever more"'
LONG = f"assert len(rounds) == (\n    6\n), 'six'\nprint('so many')\n{TITLE}"
CELLS = [
    new_markdown_cell("**Predict.** How many rounds has a ring of 4?"),
    new_code_cell("from dpbook.collectives import ring\nrounds = ring(4).rounds"),
    new_code_cell(f"for rank in range(4):\n    assert rank < 4\n{LONG}"),
    new_markdown_cell("Six."),
    new_code_cell("assert len(rounds) == 6"),
]


@pytest.fixture
def notebook(lab, open_notebook):
    nbformat.write(new_notebook(cells=CELLS, metadata={"kernelspec": KERNELSPEC}), lab.directory / "covers.ipynb")
    return open_notebook("covers.ipynb")


def run(notebook, number):
    notebook.cell(number).locator(".jp-InputPrompt").click()
    notebook.menu("Run", "Run Selected Cell")
    notebook.wait_until_idle()


def test_the_asserts_below_a_question_are_covered_until_their_cell_has_run(notebook):
    covers, code = notebook.panel.locator(".dpbook-cover"), notebook.cell(2).locator(".cm-content")
    expect(covers).to_have_text(["assert …", "assert …", '"…"'])
    expect(code).not_to_contain_text("6")
    expect(code).to_contain_text("and so on")
    expect(code).to_contain_text("so many")
    expect(notebook.cell(4).locator(".cm-content")).to_contain_text("assert len(rounds) == 6")
    run(notebook, 2)
    expect(notebook.shown_errors).to_contain_text("NameError")
    expect(covers).to_have_count(3)
    run(notebook, 1)
    run(notebook, 2)
    assert notebook.errors() == []
    expect(covers).to_have_count(0)
    expect(code).to_contain_text("assert len(rounds) == (")
    notebook.save()
    notebook.reload()
    expect(code).to_contain_text("assert len(rounds) == (")
    assert nbformat.read(notebook.server.directory / notebook.path, 4).cells[2].source == CELLS[2].source


def test_a_reader_may_uncover_them_and_what_is_written_is_not_covered(notebook):
    covers, code = notebook.panel.locator(".dpbook-cover"), notebook.cell(2).locator(".cm-content")
    code.click()
    notebook.page.keyboard.press("Control+End")
    notebook.page.keyboard.type("\nassert True")
    expect(code).to_contain_text("assert True")
    expect(covers).to_have_count(3)
    covers.first.click()
    expect(covers).to_have_count(0)
    expect(code).to_contain_text("assert rank < 4")


def asserts_of(code):
    """Lines of each assert, by Python's own parser."""
    return sorted((node.lineno, node.end_lineno) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert))


def test_what_is_covered_in_the_chapters_is_what_python_takes_for_asserts(chromium):
    """One rule for the text, in the extension, and one for the tests of what is given away."""
    paths = (checkout.root() / "chapters").glob("*.ipynb")
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    cells = [text(cell["source"]) for notebook in notebooks for _, cell in code_cells(notebook)]
    cells += [LONG, "asserted = 1", "y = 'assert x'", "if y:\n    assert f(\n        1,\n    ) == 2\n    print(1)"]
    page = chromium.new_page()
    script = (EXTENSION / "cover.js").read_text(encoding="utf-8").partition("import {made}")[2].partition("\n")[2]
    page.add_script_tag(type="module", content=f"{script}\nwindow.asserts = asserts;")
    page.wait_for_function("window.asserts !== undefined")
    for code in cells:
        found = page.evaluate("code => asserts(code)", code)
        lines = [(code.count("\n", 0, begin) + 1, code.count("\n", 0, end) + 1) for begin, end in found]
        assert lines == asserts_of(code), code
    page.close()
