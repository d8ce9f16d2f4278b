"""Do the library's own paths run on an accelerator, and are mistakes that only one shows found? One start of three."""

import importlib

import pytest

from dpbook.ranks import start
from tests.cases import each
from tests.standin.sim import needs_sim

pytestmark = needs_sim
OURS = ["bucketed", "naive", "hook"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    everything = importlib.import_module("tests.standin.path_ranks").everything
    folder = str(tmp_path_factory.mktemp("runs"))
    return start(everything, [(rank, 3, folder) for rank in range(3)], timeout=120)


@each("name", ["torch", *OURS])
def test_a_wrapper_trains_to_the_bits_of_the_cpu(ranks, name):
    for rank in ranks:
        cpu, sim = rank["wrapped"][name]
        assert sim == cpu == ranks[0]["wrapped"][name][0]


@each("name", OURS)
def test_the_host_never_waits_for_a_collective_in_a_step(ranks, name):
    """None could begin before the step was over, and its bits are the same."""
    for rank in ranks:
        assert rank["held"][name] == rank["wrapped"][name][0]


def test_a_sharded_optimizer_has_the_bits_of_the_whole_one(ranks):
    for rank in ranks:
        whole, shared = rank["sharded"]
        assert shared == whole


def test_a_schedule_has_the_bits_of_its_simulation(ranks):
    for rank in ranks:
        assert rank["schedules"] == {"ring": True, "tree": True, "parameter_server": True}


def test_what_adds_on_the_host_refuses_tensors_of_the_device(ranks):
    for rank in ranks:
        assert rank["refusals"]["a rank program"].startswith(
            "InvalidArgument: buffer must be of a dtype that NumPy has"
        )
        assert rank["refusals"]["over"].startswith("InvalidArgument: tensor must be on the CPU")


def test_an_emulated_link_carries_what_has_been_computed(ranks):
    for rank in ranks:
        assert rank["link"] == {"begun": True, "carried": True, "sum": [3.0], "average": [1.0]}


@each(("what", "share"), [("step", 1.0), ("layers", 0.4), ("observed", 0.8)])
def test_what_is_measured_takes_as_long_as_its_kernels(ranks, what, share):
    """The kernels of `measure_layers` are those of two passes, one of which counts."""
    for rank in ranks:
        measured, kernels = rank["clocks"][what]
        assert measured >= share * kernels > 0


def test_calls_are_observed_after_forward(ranks):
    for rank in ranks:
        assert rank["clocks"]["order"]
        assert all(rank["clocks"]["calls"])
        assert rank["clocks"]["calls"]


def test_a_run_predicts_its_step_and_describes_its_device(ranks):
    for rank in ranks:
        found = rank["predicted"]
        assert found.pop("seconds") > 0.05  # of some hundred kernels of a millisecond
        assert found == {"device": "stand-in accelerator", "backend": "simccl", "memory": True}


def test_the_checks_pass_what_is_right(ranks):
    for rank in ranks:
        assert set(rank["checks"].values()) == {"well"}


def test_every_mutant_is_found(ranks):
    """On some rank at least; a mistake may show on one alone."""
    for name in ranks[0]["mutants"]:
        assert {rank["mutants"][name] for rank in ranks} != {"well"}, name
    assert len(ranks[0]["mutants"]) >= 10
