"""Does an import that worked in an earlier version say where to import from now?"""

import importlib
import json

import pytest

from dpbook.core import DATA
from tests.cases import each

TABLE = json.loads((DATA / "moved.json").read_text())


def attempt(old):
    """Import ``old`` as somebody's code did: as a module, or as a name of one."""
    room, _, name = old.rpartition(".")
    try:
        importlib.import_module(old)
    except ModuleNotFoundError:
        getattr(importlib.import_module(room), name)


def test_an_old_place_names_the_new_one():
    for old, new in TABLE.items():
        with pytest.raises(ImportError, match=rf"^{old} has moved: it is in {new} now$"):
            attempt(old)


def test_the_new_places_are_there():
    for places in set(TABLE.values()):
        for place in places.replace(" and ", ", ").split(", "):
            importlib.import_module(place)


@each(
    ("statement", "place"),
    [
        ("from dpbook.errors import Deadlock", "dpbook.core"),
        ("from dpbook import distributed", "dpbook.ranks, dpbook.ddp and dpbook.program"),
        ("from dpbook.distributed.ddp import BucketedDDP", "dpbook.ranks, dpbook.ddp and dpbook.program"),
        ("from dpbook.figures import play_loop", "dpbook.book.ch01"),
        ("from dpbook import figures; figures.play_loop", "dpbook.book.ch01"),
        ("from dpbook.grading.tasks.ch05 import broken_ring", "dpbook.book"),
        ("from dpbook import book; book.root()", "dpbook.core.checkout"),
    ],
)
def test_statements_of_earlier_notebooks(statement, place):
    with pytest.raises(ImportError, match=f"it is in {place}"):
        exec(statement, {})


def test_what_never_was_is_told_as_python_tells_it():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'dpbook\.nothing'"):
        importlib.import_module("dpbook.nothing")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = importlib.import_module("dpbook.figures").nothing
