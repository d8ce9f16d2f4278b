"""Is a reader's prediction kept, and shown beside what the cell says once it has run?"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dpbook.app.notebooks.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
GUESS = "<b>6</b> rounds"
CELLS = [
    new_markdown_cell("# No question"),
    new_markdown_cell("**Predict.** How many rounds has a ring of 4?"),
    new_code_cell("from dpbook.collectives import ring"),
    new_code_cell("print(len(ring(4).rounds))"),
    new_markdown_cell("Six."),
    new_code_cell("print(7)"),
]


@pytest.fixture
def notebook(lab, open_notebook):
    """A notebook with one question. Nothing of it has been run."""
    nbformat.write(new_notebook(cells=CELLS, metadata={"kernelspec": KERNELSPEC}), lab.directory / "predict.ipynb")
    return open_notebook("predict.ipynb")


def fields(notebook):
    """Fields in which readers write a prediction, and its display: one each in every view of the notebook."""
    return notebook.panel.get_by_label("Your prediction"), notebook.panel.locator(".dpbook-predicted")


def test_a_prediction_is_kept_and_shown_beside_the_truth_in_every_view_and_goes_with_its_question(notebook):
    field, beside = fields(notebook)
    expect(field).to_have_count(1)
    field.fill(GUESS)
    expect(beside).to_be_hidden()
    enter_goes_on_to_the_cells_that_answer(notebook)
    notebook.run_all()
    expect(notebook.cell(3).locator(".dpbook-predicted")).to_have_text(f"You predicted: {GUESS}")
    expect(beside).to_have_count(1)
    notebook.save()
    notebook.reload()
    expect(field).to_have_value(GUESS)
    expect(beside).to_have_text(f"You predicted: {GUESS}")
    field.fill("")
    expect(beside).to_be_hidden()
    it_is_the_same_in_two_views_and_goes_with_its_question(notebook)


def enter_goes_on_to_the_cells_that_answer(notebook):
    for key in ("Enter", "Shift+Enter", "Shift+Enter"):
        notebook.page.keyboard.press(key)
    expect(notebook.cell(3).locator(".dpbook-predicted")).to_have_text(f"You predicted: {GUESS}")


def it_is_the_same_in_two_views_and_goes_with_its_question(notebook):
    page, (field, beside) = notebook.page, fields(notebook)
    page.get_by_role("tab", name="predict.ipynb").click(button="right")
    page.get_by_role("menuitem", name="New View for Notebook").click()
    expect(field).to_have_count(2)
    for here, there in ((0, 1), (1, 0)):
        field.nth(here).fill(f"seen in {here}")
        expect(field.nth(there)).to_have_value(f"seen in {here}")
        expect(beside.nth(there)).to_have_text(f"You predicted: seen in {here}")
    question = notebook.panel.last.locator(".jp-MarkdownCell").filter(has_text="Predict.")
    question.locator(".jp-InputPrompt").click()
    notebook.menu("Edit", "Delete Cell")
    expect(field).to_have_count(0)
    expect(beside).to_have_count(0)
    notebook.menu("Edit", "Undo Cell Operation")
    expect(field.first).to_have_value("seen in 1")
