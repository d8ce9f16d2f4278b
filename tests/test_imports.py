"""Do imports go through the doors of folders, and does each import load only what it needs?

Which folder may import which stands in `pyproject.toml`, as contracts that `make style` checks.
"""

import ast
import subprocess
import sys

import pytest

from dpbook.core import checkout
from tools.touched_notebooks import SOURCES, code, defined, home, is_package, notebooks, offered, pairs, tree, used

NOTEBOOKS = notebooks(checkout.root())
WINGS = {"runs", "classroom", "book", "app"}
OFFERED = {
    "dpbook.ddp.sharded.fully_sharded": "sharded training of any model",
    "dpbook.replicas.inexact.analysis": "closed forms of any method, and the distance of any run from another",
    **{
        f"dpbook.replicas.inexact.{method}": "a way to train any replicas"
        for method in ("compression", "delayed_updates", "missing_ranks")
    },
}
"""Library modules that one chapter alone uses, and what else they are for."""


def area(module):
    """Return the folder right below ``dpbook`` that holds a module; in the book it is the chapter's."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["book"] else "".join(parts[:1])


def in_library(module):
    """Return True if a module is in the library, and not in a wing."""
    return area(module).partition(".")[0] not in WINGS


def past_a_door(base, name):
    """Return True if ``from base import name`` reaches into a folder that does not offer the name."""
    if not is_package(base):
        return True
    inside = f"{base}.{name}"
    return inside in SOURCES and not is_package(inside) and name not in offered(base)


def test_a_folder_is_entered_by_its_door():
    for module in SOURCES:
        outside = [
            (b, a.name if a else "") for b, a in pairs(tree(module)) if b != "dpbook" and area(b) != area(module)
        ]
        assert (module, [(base, name) for base, name in outside if past_a_door(base, name)]) == (module, [])


def test_a_notebook_enters_by_doors_too_and_never_sees_what_judges_it():
    for notebook in NOTEBOOKS:
        found = [(b, a.name) for b, a in pairs(code(notebook)) if a and b not in ("dpbook", "dpbook.app")]
        assert [
            (notebook, base, name)
            for base, name in found
            if name == "judge" or ".judge" in base or past_a_door(base, name)
        ] == []
        chapters = {area(home(base, name)) for base, name in found if base.startswith("dpbook.book")} - {""}
        open_to_all = {f"book.ch{notebook.stem[:2]}", "book", "book.gpu_records", "book.sim"}
        assert (notebook, chapters - open_to_all) == (notebook, set())


def test_no_module_is_hidden_by_a_name_beside_it():
    """``import dpbook.folder.thing as m`` must give the module, not a function of that name."""
    doors = {module for module in SOURCES if is_package(module)}
    hidden = [m for m in SOURCES if m.rpartition(".")[2] in defined(m)]
    for door in doors:
        names = {n for n, (base, name) in offered(door).items() if home(base, name) != f"{door}.{n}"} | defined(door)
        hidden += [f"{door}.{name}" for name in names if f"{door}.{name}" in SOURCES]
    assert hidden == []


def test_what_torch_takes_long_to_load_waits_until_it_is_used():
    """A reader who imports a folder has not asked for checkpoints, nor for the compiler; each takes a second."""
    slow = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.optim")
    found = [
        (module, ast.unparse(statement))
        for module in SOURCES
        if in_library(module) or area(module) in ("runs", "classroom")
        for statement in tree(module).body
        if isinstance(statement, ast.Import | ast.ImportFrom) and any(name in ast.unparse(statement) for name in slow)
    ]
    assert found == []


def test_no_library_module_serves_one_chapter_alone():
    library, chapters = {module: set() for module in SOURCES}, {module: set() for module in SOURCES}
    for module in SOURCES:
        if not (is_package(module) and in_library(module)):  # a door uses nothing
            users = chapters if area(module).startswith("book.") else library
            for target in used(tree(module)) - {module}:
                users[target].add(area(module)[-4:] if users is chapters else module)
    for notebook in NOTEBOOKS:
        for target in used(code(notebook)):
            chapters[target].add(f"ch{notebook.stem[:2]}")
    alone = {
        module
        for module in SOURCES
        if in_library(module) and not is_package(module) and not library[module] and len(chapters[module]) == 1
    }
    assert alone == set(OFFERED)


@pytest.mark.parametrize(
    ("base", "name", "past"),
    [
        ("dpbook.collectives", "ring", False),
        ("dpbook.collectives", "closed_forms", False),
        ("dpbook.figures.card", "axes", False),
        ("dpbook.figures", "plots", True),
        ("dpbook.collectives", "*", False),
        ("dpbook.collectives.pricing.topology", "", True),
        ("dpbook.collectives.pricing.topology", "Link", True),
    ],
)
def test_a_step_past_a_door_is_found(base, name, past):
    assert past_a_door(base, name) == past


def test_a_lazy_door_names_modules_that_define_its_names():
    for door in filter(is_package, SOURCES):
        calls = [node for node in ast.walk(tree(door)) if isinstance(node, ast.Call)]
        lazy = [call for call in calls if ast.unparse(call.func).endswith("lazy_exports")]
        homes = {keyword.arg: f"{door}.{ast.literal_eval(keyword.value)}" for call in lazy for keyword in call.keywords}
        assert {name: home for name, home in homes.items() if name not in defined(home)} == {}


LIGHT = ["dpbook", *sorted(m for m in SOURCES if is_package(m) and area(m) != "ddp")]


def test_a_light_import_loads_nothing_heavy():
    """All of them in one interpreter: what is not there after the last was not loaded by any."""
    code = f"import sys, {', '.join(LIGHT)}; print(*{{'torch', 'matplotlib', 'IPython'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("from dpbook.classroom import check, exercise", {"core", "collectives", "classroom"}),  # in exercises
        ("from dpbook import figures", {"core", "figures"}),
    ],
)
def test_a_door_that_every_reader_enters_loads_few_folders(statement, allowed):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True)
    assert {area(module) for module in done.stdout.split() if module.startswith("dpbook.")} == allowed


def test_what_is_started_as_a_module_is_not_loaded_by_a_door():
    """Else Python warns that it is loaded twice, on every rank."""
    started = {m for m in SOURCES if 'if __name__ == "__main__"' in SOURCES[m].read_text(encoding="utf-8")}
    code = f"import sys, {', '.join(LIGHT)}; print(*sorted({started!r} & set(sys.modules)))"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True
    )
    assert len(started) > 5
    assert child.stdout.split() == []
