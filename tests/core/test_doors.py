"""Does a front door offer its lazy names, to code and to an editor that completes them?"""

import ast
import sys
from types import ModuleType

import pytest

from dpbook.core import lazy_exports
from tools.touched_notebooks import SOURCES, is_package, offered, tree


def test_a_lazy_name_is_listed_and_is_imported_when_it_is_used(monkeypatch):
    room, module = ModuleType("room"), ModuleType("room.cellar")
    module.wine = object()
    for new in (room, module):
        monkeypatch.setitem(sys.modules, new.__name__, new)
    room.__getattr__ = lazy_exports("room", wine="cellar")
    assert "wine" in dir(room)
    assert "wine" not in vars(room)
    assert room.wine is module.wine
    with pytest.raises(AttributeError, match="has no attribute 'water'"):
        _ = room.water


def lazy_names(module):
    """The names that a door gives to `lazy_exports`, each with the module that it comes from."""
    calls = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    lazy = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "lazy_exports"]
    return {k.arg: (f"{module}.{k.value.value}", k.arg) for call in lazy for k in call.keywords}


def names_for_types(module):
    """Names that a door imports for the type checker alone; submodules need no `lazy_exports`."""
    blocks = [s for s in tree(module).body if isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING"]
    return {a.name: (s.module, a.name) for block in blocks for s in block.body for a in s.names if s.module != module}


def test_lazy_names_are_those_that_the_type_checker_knows():
    doors = [module for module in SOURCES if is_package(module) and lazy_names(module)]
    assert "dpbook.figures" in doors
    for module in doors:
        assert (module, lazy_names(module)) == (module, names_for_types(module))
        assert lazy_names(module).items() <= offered(module).items()
