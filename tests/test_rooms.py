"""Does the tree hold to its design: arrows one way, rooms entered by their doors, library and book apart?"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from dpbook.app.imports import SOURCES, code, defined, home, is_package, notebooks, offered, pairs, tree, used
from dpbook.core import checkout
from tests.cases import each

NOTEBOOKS = notebooks(checkout.root())

TIERS = [
    {"core"}, {"collectives"}, {"replicas", "overlap"}, {"planning"}, {"ranks"}, {"ddp", "standin"},
    {"audit", "program"}, {"forecast"}, {"figures"}, {"grading"}, {"book"}, {"app"},
]  # fmt: skip
"""A room imports those of earlier tiers alone."""
LEVEL = {room: level for level, rooms in enumerate(TIERS) for room in rooms}
NUMERIC = {room for room, level in LEVEL.items() if level <= LEVEL["planning"]}
"""NumPy and the standard library are enough here."""
WITH_TORCH = {"ranks", "ddp", "audit", "forecast", "program", "standin", "book"}
OFFERED = {
    "dpbook.standin.installation": "the stand-in accelerator, for tests",
    "dpbook.program.__main__": "what torchrun starts in each rank, by its name",
    "dpbook.planning.scaling": "the planner of a cluster",
    "dpbook.collectives.algorithms.nodes": "all-reduces for machines with several GPUs each",
    "dpbook.figures.steps.memory": "the memory of any sharded step over its time",
    "dpbook.audit.recording.installation": "what every rank of an audit calls, by its name",
    "dpbook.replicas.exactness.rounded": "the bound against which any gradient may be judged",
    "dpbook.planning.failures": "how often any job is to save",
    "dpbook.replicas.inexact.distance": "how far any run is from another",
    "dpbook.replicas.inexact.parabolas": "the model with closed forms, for any method",
    **{
        f"dpbook.replicas.inexact.{method}": "a way to train any replicas"
        for method in (
            "asynchronous",
            "compression",
            "diloco",
            "local",
            "low_precision",
            "missing",
            "powersgd",
            "stale",
        )
    },
}
"""Library modules that one chapter alone uses, and what else they are for."""


def room(module):
    """The room of a module: of the book, each chapter is one."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["book"] else "".join(parts[:1])


def level(module):
    return LEVEL.get(room(module).partition(".")[0], len(TIERS))  # beside the rooms: what starts the command line


def against_the_arrows(module, parsed):
    """What ``parsed``, the source of ``module``, imports although it may not."""
    for base, alias in pairs(parsed):
        where = home(base, alias.name) if alias and base in SOURCES else base
        if where != "dpbook" and room(where) != room(module) and level(where) >= level(module):
            yield where
    for node in ast.walk(parsed):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
        for top in {name.partition(".")[0] for name in names} - {""} if hasattr(node, "names") else ():
            mine = room(module).partition(".")[0]
            if mine in NUMERIC | {"core"} and top not in {"numpy", "dpbook", "filelock"} | sys.stdlib_module_names:
                yield top
            if top == "torch" and mine not in WITH_TORCH:
                yield top


def units(package, parsed):
    """What ``parsed`` imports of ``package``, by the module or folder right inside it; for types alone counts not."""
    for statement in parsed.body:
        if not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
            for base, alias in pairs(statement):
                where = home(base, alias.name) if alias and base in SOURCES else base
                if where.startswith(f"{package}."):
                    yield where.removeprefix(f"{package}.").partition(".")[0]


def circle(package, sources):
    """Modules and folders right inside ``package`` that import one another in a circle, or []."""
    graph = defaultdict(set)
    for module, parsed in sources.items():
        unit = module.removeprefix(f"{package}.").partition(".")[0]
        graph[unit] |= {*units(package, parsed)} - {unit}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def past_a_door(base, name):
    """Whether ``from base import name`` reaches into a room that does not offer it."""
    if not is_package(base):
        return True
    inside = f"{base}.{name}"
    return inside in SOURCES and not is_package(inside) and name not in offered(base)


def test_a_module_imports_only_what_its_room_may():
    assert {module: found for module in SOURCES if (found := list(against_the_arrows(module, tree(module))))} == {}


def test_within_a_folder_too_arrows_run_one_way():
    for package in filter(is_package, SOURCES):
        inside = {module: tree(module) for module in SOURCES if module.startswith(f"{package}.")}
        assert (package, circle(package, inside)) == (package, [])


def test_a_circle_within_a_folder_is_found():
    sources = {
        "dpbook.room.first.a": "from dpbook.room.second.b import f",
        "dpbook.room.second.b": "def f():\n    from dpbook.room.first.a import g",
    }
    parsed = {module: ast.parse(text) for module, text in sources.items()}
    assert set(circle("dpbook.room", parsed)) == {"first", "second"}
    assert circle("dpbook.room", {"dpbook.room.first.a": parsed["dpbook.room.first.a"]}) == []
    for_types = ast.parse("if TYPE_CHECKING:\n    from dpbook.room.first.a import T")
    assert circle("dpbook.room", parsed | {"dpbook.room.second.b": for_types}) == []


def test_a_room_is_entered_by_its_door():
    for module in SOURCES:
        outside = [
            (b, a.name if a else "") for b, a in pairs(tree(module)) if b != "dpbook" and room(b) != room(module)
        ]
        assert (module, [(base, name) for base, name in outside if past_a_door(base, name)]) == (module, [])


def test_a_notebook_enters_by_doors_too_and_never_sees_what_judges_it():
    for notebook in NOTEBOOKS:
        found = [(b, a.name) for b, a in pairs(code(notebook)) if a and b not in ("dpbook", "dpbook.app")]
        assert [(notebook, base, name) for base, name in found if ".judge" in base or past_a_door(base, name)] == []
        chapters = {room(home(base, name)) for base, name in found if base.startswith("dpbook.book")} - {""}
        assert (notebook, chapters - {f"book.ch{notebook.stem[:2]}", "book"}) == (notebook, set())


def test_nobody_takes_the_stand_in_for_an_accelerator_by_accident():
    """Only a chapter may, which says so."""
    users = {module for module in SOURCES for target in used(tree(module)) if room(target) == "standin"}
    assert {module for module in users if room(module) != "standin" and not room(module).startswith("book.")} == set()


def test_every_room_is_in_the_design():
    assert {room(module).partition(".")[0] for module in SOURCES if is_package(module)} - {""} == set(LEVEL)


def test_the_architecture_shows_the_rooms_with_their_numbers():
    page = (checkout.root() / "docs/architecture.md").read_text(encoding="utf-8")
    shown = [(name, int(number)) for number, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)]
    assert dict(shown) == {room: level + 1 for room, level in LEVEL.items()}
    assert shown == sorted(shown, key=lambda row: row[1])


def test_no_module_is_hidden_by_a_name_beside_it():
    """``import dpbook.room.thing as m`` must give the module, not a function of that name."""
    doors = {module for module in SOURCES if is_package(module)}
    hidden = [m for m in SOURCES if m.rpartition(".")[2] in defined(m)]
    for door in doors:
        names = {n for n, (base, name) in offered(door).items() if home(base, name) != f"{door}.{n}"} | defined(door)
        hidden += [f"{door}.{name}" for name in names if f"{door}.{name}" in SOURCES]
    assert hidden == []


def test_what_torch_takes_long_to_load_waits_until_it_is_used():
    """A reader who imports a room has not asked for checkpoints, nor for the compiler; each takes a second."""
    slow = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.optim")
    found = [
        (module, ast.unparse(statement))
        for module in SOURCES
        if level(module) < LEVEL["book"]
        for statement in tree(module).body
        if isinstance(statement, ast.Import | ast.ImportFrom) and any(name in ast.unparse(statement) for name in slow)
    ]
    assert found == []


def test_no_library_module_serves_one_chapter_alone():
    library, chapters = {module: set() for module in SOURCES}, {module: set() for module in SOURCES}
    for module in SOURCES:
        if not (is_package(module) and level(module) < LEVEL["book"]):  # a door uses nothing
            users = chapters if room(module).startswith("book.") else library
            for target in used(tree(module)) - {module}:
                users[target].add(room(module)[-4:] if users is chapters else module)
    for notebook in NOTEBOOKS:
        for target in used(code(notebook)):
            chapters[target].add(f"ch{notebook.stem[:2]}")
    alone = {
        module
        for module in SOURCES
        if level(module) < LEVEL["book"]
        and not is_package(module)
        and not library[module]
        and len(chapters[module]) == 1
    }
    assert alone == set(OFFERED)


@each(
    ("source", "module"),
    [
        ("import torch", "dpbook.collectives.new"),
        ("def f():\n    from torch.nn import Module", "dpbook.figures.new"),
        ("import matplotlib.pyplot", "dpbook.planning.new"),
        ("from dpbook.replicas import train", "dpbook.collectives.new"),
        ("from dpbook import ranks", "dpbook.overlap.new"),
        ("from dpbook.overlap import plan", "dpbook.replicas.new"),
        ("from dpbook.figures.card import svg", "dpbook.ranks.new"),
        ("from dpbook.app import main", "dpbook.grading.new"),
        ("from dpbook.book.ch02 import BatchNorm", "dpbook.book.ch03.new"),
        ("import torch", "dpbook.app.new"),
    ],
)
def test_an_import_against_the_arrows_is_found(source, module):
    assert list(against_the_arrows(module, ast.parse(source)))


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


LIGHT = ["dpbook", *sorted(m for m in SOURCES if is_package(m) and room(m) != "ddp" and "judge" not in m)]


def test_a_light_import_loads_nothing_heavy():
    """All of them in one interpreter: what is not there after the last was not loaded by any."""
    code = f"import sys, {', '.join(LIGHT)}; print(*{{'torch', 'matplotlib', 'IPython'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("from dpbook.grading import check, exercise", {"core", "collectives", "grading"}),  # in exercises
        ("from dpbook import figures", {"core", "figures"}),
    ],
)
def test_a_door_that_every_reader_enters_loads_few_rooms(statement, allowed):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True)
    assert {room(module) for module in done.stdout.split() if module.startswith("dpbook.")} == allowed


def test_what_is_started_as_a_module_is_not_loaded_by_a_door():
    """Else Python warns that it is loaded twice, on every rank."""
    started = {m for m in SOURCES if 'if __name__ == "__main__"' in SOURCES[m].read_text(encoding="utf-8")}
    code = f"import sys, {', '.join(LIGHT)}; print(*sorted({started!r} & set(sys.modules)))"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), text=True, capture_output=True, check=True
    )
    assert len(started) > 5
    assert child.stdout.split() == []
