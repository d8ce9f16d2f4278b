"""Do the pages of documentation name things of torch that exist?"""

import importlib
import re

import pytest

from dpbook.core import checkout

PAGES = sorted((checkout.root() / "docs").glob("*.md"))
NAME = re.compile(r"`[^`\n]*?\b(torch(?:\.\w+)+)")


def exists(name):
    """Return True if a dotted name is a module or an attribute of torch; ``sim`` is the stand-in's module."""
    parent, *parts = name.split(".")
    found = importlib.import_module(parent)
    for part in parts:
        parent = f"{parent}.{part}"
        try:
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(parent)
        except ImportError:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_of_torch_exists(page):
    names = {name for name in NAME.findall(page.read_text(encoding="utf-8")) if not name.startswith("torch.sim")}
    assert [name for name in sorted(names) if not exists(name)] == []


def test_a_name_that_torch_does_not_have_is_found():
    assert exists("torch.cuda.memory._record_memory_history")
    assert exists("torch.distributed.run")
    assert not exists("torch.cuda.memory.dump_snapshot")
