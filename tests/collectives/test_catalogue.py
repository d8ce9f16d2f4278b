"""Does a new algorithm need no more than its module and one entry of the catalogue, and do the tests then judge it?"""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MODULE = '''
"""A ring each way round."""

from dpbook.collectives.algorithms.rings import ring
from dpbook.collectives.schedule.schedule import beside, embed
from dpbook.collectives.schedule.schedule import Schedule


def two_way_ring(world: int) -> Schedule:
    """Two rings side by side: the first half of the chunks goes to the right, the second half to the left."""
    one = ring(world)
    right = embed(one, world, range(world), 2 * world, range(world))
    left = embed(one, world, range(world)[::-1], 2 * world, range(world, 2 * world))
    return beside(right, left).named(f"two_way_ring(world={world})")
'''

ENTRIES = """
from dpbook.collectives.algorithms.two_way import two_way_ring

ALGORITHMS = {
    "two_way": Algorithm(two_way_ring, lambda world: 2 * (world - 1), closed_forms.ring),
    "two_way_misjudged": Algorithm(two_way_ring, lambda world: world - 1, closed_forms.recursive_doubling),
"""
ROUNDS = "test_rounds_are_those_of_the_textbook"
PRICE = "test_on_a_link_the_formula_is_the_counted_price"
BETWEEN = "test_elsewhere_the_counted_price_lies_between_the_next_sizes_that_divide"


def copy_of_the_room(root):
    """The package and the tests of this room, with the module and its entries; nothing else is changed."""
    for folder in ("dpbook", "tests/collectives"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/cases.py", "tests/conftest.py"):
        shutil.copy(ROOT / file, root / file)
    shutil.copy(ROOT / "tests/cases.py", root / "tests")
    (root / "dpbook/collectives/algorithms/two_way.py").write_text(MODULE, encoding="utf-8")
    catalogue = root / "dpbook/collectives/algorithms/catalogue.py"
    original = catalogue.read_text(encoding="utf-8")
    catalogue.write_text(original.replace("\nALGORITHMS = {\n", ENTRIES), encoding="utf-8")


def outcomes(root):
    """Return the outcomes of the tests of the new entries, as {(outcome, entry): names of tests}."""
    command = [sys.executable, "-m", "pytest", "-q", "-rpf", "--tb=no", "-p", "no:cacheprovider", "-k", "two_way"]
    files = ["tests/collectives/test_algorithms.py", "tests/collectives/test_closed_forms.py"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run([*command, *files], cwd=root, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    found = defaultdict(set)
    for outcome, test, entry in re.findall(r"^(PASSED|FAILED) \S+::(\w+)\[\S*?(two_way\w*)", done.stdout, re.MULTILINE):
        found[outcome, entry].add(test)
    return found


@pytest.mark.proof
@pytest.mark.processes
def test_a_new_algorithm_is_judged_by_what_its_entry_says(tmp_path):
    copy_of_the_room(tmp_path)
    found = outcomes(tmp_path)
    assert {ROUNDS, PRICE, BETWEEN, "test_every_algorithm_keeps_its_promise"} <= found["PASSED", "two_way"]
    assert found["FAILED", "two_way"] == set()
    assert found["FAILED", "two_way_misjudged"] == {ROUNDS, PRICE, BETWEEN}
