"""Do the imports run along the arrows of the design, and does a light import stay light?"""

import ast
import subprocess
import sys

import pytest

from dpbook import book

PACKAGE = book.root() / "dpbook"
NUMERIC = {"collectives", "replicas", "overlap", "planning"}
ALLOWED = {
    "collectives": set(),
    "replicas": {"collectives"},
    "overlap": {"collectives"},
    "planning": {"collectives", "replicas", "overlap"},
    "distributed": NUMERIC,
    "lab": NUMERIC | {"distributed"},
    "figures": NUMERIC | {"distributed", "lab"},
    "grading": NUMERIC | {"distributed", "lab", "figures"},
}
SHARED = {"errors", "files", "text", "book", "machine", ""}  # "" is the package itself
ROOMS = sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").is_file())


def imports(source, package):
    """The dotted names that ``source``, a module of ``package``, imports anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def faults(source, room):
    """What ``source`` imports although ``room`` may not."""
    for name in imports(source, f"dpbook.{room}" if room else "dpbook"):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top == "dpbook":
            if room and target in ALLOWED and target != room and target not in ALLOWED[room]:
                yield name
            if room and target not in ALLOWED and target not in SHARED and not target.startswith("__"):
                yield name
        elif (top == "torch" and room not in ("distributed", "lab")) or (
            room in NUMERIC and top != "numpy" and top not in sys.stdlib_module_names
        ):
            yield name


MODULES = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_only_what_its_room_may(module):
    room = module.parts[0] if len(module.parts) > 1 else ""
    assert not list(faults((PACKAGE / module).read_text(encoding="utf-8"), room))


def test_every_room_is_in_the_design():
    assert set(ROOMS) <= set(ALLOWED)


@pytest.mark.parametrize(
    ("source", "room"),
    [
        ("import torch", "collectives"),
        ("def f():\n    from torch.nn import Module", "figures"),
        ("import matplotlib.pyplot", "planning"),
        ("from dpbook.replicas import loop", "collectives"),
        ("from dpbook import distributed", "overlap"),
        ("from ..figures import palette", "distributed"),
        ("from dpbook.cli import main", "grading"),
        ("import torch", ""),
    ],
)
def test_an_import_against_the_arrows_is_found(source, room):
    assert list(faults(source, room))


@pytest.mark.parametrize(
    ("source", "room"),
    [
        (
            "import numpy as np\nfrom dpbook.errors import check_int\nfrom dpbook.collectives.bounds import x",
            "collectives",
        ),
        ("from .schedule import Schedule", "collectives"),
        ("from ..collectives import ring", "replicas"),
        ("import torch", "distributed"),
        ("import ipywidgets", "figures"),
        ("from dpbook import __version__, book, jupyter", ""),
    ],
)
def test_an_import_along_the_arrows_is_not(source, room):
    assert not list(faults(source, room))


@pytest.mark.parametrize("name", ["dpbook", *(f"dpbook.{room}" for room in ROOMS if room in NUMERIC)])
def test_a_light_import_loads_nothing_heavy(name):
    code = f"import sys, {name}; print(*sorted({{'torch', 'matplotlib', 'ipywidgets', 'IPython'}} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], cwd=book.root(), capture_output=True, text=True, check=True)
    assert child.stdout.split() == []
