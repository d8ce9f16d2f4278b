"""Do names and docstrings use the words that engineers search for?"""

import ast
import re
from functools import cache

import pytest

from dpbook.core import checkout
from tests.cases import each

ROOT = checkout.root()
BANNED = frozenset(
    [
        "told",
        "said",
        "asked",
        "left",
        "held",
        "kept",
        "came",
        "what",
        "how",
        "which",
        "who",
        "each",
        "own",
        "away",
        "found",
        "seen",
        "made",
        "done",
        "apart",
    ]
)
"""Participles, pronouns and adverbs that say nothing alone about the thing they name."""
FRAGMENT = re.compile(r"(What|Who|Which|How|Whether who|Of|Those|That which|As|Where)\b")
"""Beginnings of a clause that has no subject of its own."""
HELPERS = frozenset({"each"})
"""Names that are banned for the package and are an established helper of the tests."""


def sources(folder):
    """Paths of the Python files below ``folder``, relative to the checkout."""
    return [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]


def definitions(tree):
    """Functions and classes of a module, at any depth."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]


def public_names(stem, tree):
    """Names of the module, of its functions and classes, their parameters and their fields, each with its line."""
    yield stem, 1
    for node in definitions(tree):
        yield node.name, node.lineno
        if isinstance(node, ast.ClassDef):
            yield from ((line.target.id, line.lineno) for line in node.body if is_field(line))
        else:
            arguments = node.args
            for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                yield argument.arg, argument.lineno


def is_field(statement):
    return isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)


def banned_names(stem, tree):
    """Public names of a module that are banned, as "line: name"."""
    names = {(line, name) for name, line in public_names(stem, tree) if not name.startswith("_")}
    return [f"{line}: {name}" for line, name in sorted(names) if name.lower() in BANNED]


def fragments(tree):
    """Docstrings of a module whose first line has no subject, as "line: beginning"."""
    documented = [tree, *definitions(tree)]
    first = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in documented]
    return [f"{line}: {text.splitlines()[0]}" for line, text in first if is_fragment(text)]


def is_fragment(docstring):
    """Whether a docstring begins with a clause that has no subject; a question is a sentence."""
    return bool(FRAGMENT.match(docstring)) and "?" not in docstring.splitlines()[0]


def test_public_names_are_terms():
    assert {str(path): banned for path in sources("dpbook") if (banned := banned_names(path.stem, parsed(path)))} == {}


def test_docstrings_begin_with_a_statement_or_the_name_of_a_thing():
    assert {str(path): found for path in sources("dpbook") if (found := fragments(parsed(path)))} == {}


@pytest.mark.parametrize("folder", ["tests", "tools"])
def test_names_and_docstrings_of_tests_and_tools_obey_the_same_rules(folder):
    faults = {
        str(path): [*banned_names(path.stem, tree), *fragments(tree)]
        for path in sources(folder)
        for tree in [parsed(path)]
    }
    allowed = {
        path: [fault for fault in rows if fault.partition(": ")[2] not in HELPERS] for path, rows in faults.items()
    }
    assert {path: rows for path, rows in allowed.items() if rows} == {}


@cache
def parsed(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@each(
    ("source", "faults"),
    [
        ("def told(): pass", ["1: told"]),
        ("def report(what, *, how=1): pass", ["1: how", "1: what"]),
        ("class Left: pass", ["1: Left"]),
        ("class Evidence:\n    said: str", ["2: said"]),
        ("def _told(_what): pass", []),
        ("def message(report): pass", []),
    ],
)
def test_a_banned_name_is_found(source, faults):
    assert banned_names("module", ast.parse(source)) == faults


@each(
    ("docstring", "expected"),
    [
        ("Of each stage; as a ghost they are faint.", True),
        ("What came stands for no value.", True),
        ("Whether who is at the call has gone past it.", True),
        ("Return the bytes that each rank sends.", False),
        ("Bytes that each rank sends, per round.", False),
        ("Official name of an algorithm.", False),
        ("Whether a rank has finished.", False),
        ("What does a start cost?", False),
    ],
)
def test_a_docstring_without_a_subject_is_found(docstring, expected):
    assert bool(fragments(ast.parse(f'def f():\n    """{docstring}"""'))) == expected
