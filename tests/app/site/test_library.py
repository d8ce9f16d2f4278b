"""Is every public name of the library on the page of its room, with its parameters and what it returns?"""

import importlib
import inspect
import re

import pytest

from dpbook.app.site.library import ROOMS, library_pages


@pytest.fixture(scope="module")
def pages():
    return dict(library_pages())


@pytest.mark.parametrize("room", ROOMS)
def test_every_class_and_function_is_there_with_its_parameters(pages, room):
    module = importlib.import_module(f"dpbook.{room}")
    entries = dict(re.findall(r"^### (\w+)\n\n```python\n(.*?)\n```", pages[room], re.MULTILINE | re.DOTALL))
    public = {
        name: one
        for name, one in inspect.getmembers(module, lambda one: inspect.isclass(one) or inspect.isfunction(one))
        if not name.startswith("_") and one.__module__.startswith(module.__name__)
    }
    lazy = {name for name in dir(module) if not name.startswith("_")} - set(vars(module))
    public |= {name: getattr(module, name) for name in lazy if inspect.isfunction(getattr(module, name))}
    assert len(public) > 5
    assert set(public) <= set(entries)
    for name, one in public.items():
        if inspect.isfunction(one):
            missing = [key for key in inspect.signature(one).parameters if not re.search(rf"\b{key}\b", entries[name])]
            assert missing == [], name


def test_a_name_has_its_docstring_its_members_and_its_attributes_as_a_list(pages):
    text = pages["planning"].partition("### Cluster\n")[2].partition("\n### ")[0]
    assert "A cluster of `world` accelerators; more than `per_node` must fill whole nodes." in text
    assert "\n- `per_node`: accelerators in a node.\n" in text
    assert "- `of(world: int) -> Cluster`: Return the same cluster with `world` accelerators." in text
    assert "self" not in text
    assert "``" not in text.replace("```", "")


def test_constants_are_listed(pages):
    assert re.search(r"^- `ALGORITHMS`: .*`'ring'`", pages["collectives"], re.MULTILINE)
    assert "- `MODELS`: `'Llama-2 7B'`" in pages["planning"]


def test_no_page_has_an_address_of_this_process():
    """A function that is the default of a parameter is shown by its name."""
    pages = dict(library_pages())
    assert not [page for page in pages.values() if " at 0x" in page]
    assert "= pad" in pages["replicas"]
