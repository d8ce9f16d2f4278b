"""Does the list of chapters come from the notebooks, and does a bad one say which it is?"""

import json

import pytest

from dpbook.core import checkout
from dpbook.core.errors import DpbookError


def store(folder, name, needs):
    path = folder / name
    path.write_text(json.dumps({"cells": [], "metadata": {"dpbook": needs}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_chapters_come_in_the_order_of_their_labels(tmp_path):
    store(tmp_path, "10_ten.ipynb", {"title": "Ten", "minutes": 90})
    store(tmp_path, "02_two.ipynb", {"title": "Two", "minutes": 30})
    store(tmp_path, "02b_more.ipynb", {"title": "More", "minutes": 20})
    (tmp_path / "notes.ipynb").write_text("")
    found = checkout.chapters(tmp_path)
    assert [(c.label, c.number, c.is_optional, c.title, c.minutes) for c in found] == [
        ("02", 2, False, "Two", 30),
        ("02b", 2, True, "More", 20),
        ("10", 10, False, "Ten", 90),
    ]


@pytest.mark.parametrize(
    "needs",
    [
        None,
        {},
        {"title": "T"},
        {"minutes": 30},
        {"title": "T", "minutes": 0},
        {"title": "T", "minutes": "long"},
    ],
)
def test_a_chapter_that_does_not_say_what_it_needs_is_named(tmp_path, needs):
    store(tmp_path, "03_bad.ipynb", needs)
    with pytest.raises(DpbookError, match="03_bad"):
        checkout.chapters(tmp_path)


def test_a_notebook_that_is_no_json_is_named(tmp_path):
    (tmp_path / "04_torn.ipynb").write_text('{"cells": [')
    with pytest.raises(DpbookError, match="04_torn"):
        checkout.chapters(tmp_path)
