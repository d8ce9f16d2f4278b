"""Is a reader's prediction kept, and shown beside what the cell says once it has run?"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dpbook.app.validation import KERNELSPEC

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
GUESS = "<b>6</b> rounds"


def test_enter_goes_on_to_the_cell_that_answers(lab, open_notebook):
    cells = [new_markdown_cell("**Predict.** How much is 2 + 3?"), new_code_cell("2 + 3"), new_markdown_cell("Five.")]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), lab.directory / "enter.ipynb")
    notebook = open_notebook("enter.ipynb")
    notebook.panel.get_by_label("Your prediction").fill("five")
    notebook.page.keyboard.press("Enter")
    notebook.page.keyboard.press("Shift+Enter")
    expect(notebook.cell(1).locator(".dpbook-predicted")).to_have_text("You predicted: five")


def test_a_prediction_is_kept_and_shown_beside_the_truth(lab, open_notebook):
    cells = [
        new_markdown_cell("# No question"),
        new_markdown_cell("**Predict.** How many rounds has a ring of 4?"),
        new_code_cell("from dpbook.collectives import ring"),
        new_code_cell("print(len(ring(4).rounds))"),
        new_markdown_cell("Six."),
        new_code_cell("print(7)"),
    ]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), lab.directory / "predict.ipynb")
    notebook = open_notebook("predict.ipynb")
    field, beside = notebook.panel.get_by_label("Your prediction"), notebook.panel.locator(".dpbook-predicted")
    expect(field).to_have_count(1)
    field.fill(GUESS)
    expect(beside).to_be_hidden()
    notebook.run_all()
    expect(notebook.cell(3).locator(".dpbook-predicted")).to_have_text(f"You predicted: {GUESS}")
    expect(beside).to_have_count(1)
    notebook.save()
    notebook.open()
    expect(field).to_have_value(GUESS)
    expect(beside).to_have_text(f"You predicted: {GUESS}")
    field.fill("")
    expect(beside).to_be_hidden()


def test_a_prediction_is_the_same_in_two_views_and_goes_with_its_question(lab, open_notebook):
    cells = [new_code_cell("print(6)"), new_markdown_cell("**Predict.** How many?"), new_code_cell("print(7)")]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC}), lab.directory / "views.ipynb")
    notebook = open_notebook("views.ipynb")
    notebook.run_all()
    page = notebook.page
    page.get_by_role("tab", name="views.ipynb").click(button="right")
    page.get_by_role("menuitem", name="New View for Notebook").click()
    field, beside = notebook.panel.get_by_label("Your prediction"), notebook.panel.locator(".dpbook-predicted")
    expect(field).to_have_count(2)
    for here, there in ((0, 1), (1, 0)):
        field.nth(here).fill(f"seen in {here}")
        expect(field.nth(there)).to_have_value(f"seen in {here}")
        expect(beside.nth(there)).to_have_text(f"You predicted: seen in {here}")
    notebook.panel.last.locator(".jp-MarkdownCell .jp-InputPrompt").click()
    notebook.menu("Edit", "Delete Cell")
    expect(field).to_have_count(0)
    expect(beside).to_have_count(0)
    notebook.menu("Edit", "Undo Cell Operation")
    expect(field.first).to_have_value("seen in 1")
