"""Is each mistake that only an accelerator shows found by its check, and does that pass what is right? One start.

The list is here to be read, and to be held against the one that is tried.
"""

import importlib

import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = [*needs_sim, pytest.mark.proof]
MUTANTS = [
    "the batch stays on the CPU", "the model stays on the CPU", "the loss is added up on the CPU",
    "the buckets lie on the CPU", "nobody waits for a bucket", "the clock is not synchronised", "hooks see launches",
    "a step is measured by the host", "the link charges at launch", "messages go one by one",
    "a message is added before it has come", "a group for the accelerator alone", "the host reads too early",
    "the host reads the loss in every step", "the optimizer asks the host", "record_stream is forgotten",
]  # fmt: skip


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    everything = importlib.import_module("tests.book.sim.mutants").everything
    folder = str(tmp_path_factory.mktemp("runs"))
    return start(everything, [(rank, 3, folder) for rank in range(3)], timeout=240)


def test_the_checks_pass_what_is_right(ranks):
    for right, _ in ranks:
        assert set(right.values()) == {"well"}


@each("name", MUTANTS)
def test_every_mutant_is_found(ranks, name):
    """On some rank at least; a mistake may show on one alone."""
    assert {mutants[name] for _, mutants in ranks} != {"well"}


def test_no_mutant_is_left_out(ranks):
    for _, mutants in ranks:
        assert list(mutants) == MUTANTS
