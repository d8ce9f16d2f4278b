"""Do the library's own paths run on an accelerator, and are mistakes that only one shows found? One start of three."""

import importlib

import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = needs_sim
OURS = ["bucketed", "naive", "hook"]
MUTANTS = [
    "the loss is added up on the CPU", "nobody waits for a bucket", "the clock is not synchronised",
    "a group for the accelerator alone",
]  # fmt: skip
"""Some of those of test_mutants.py."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    everything = importlib.import_module("tests.book.sim.path_ranks").everything
    folder = str(tmp_path_factory.mktemp("runs"))
    return start(everything, [(rank, 3, folder, MUTANTS) for rank in range(3)], timeout=120)


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


@each("options", ["sim", "held", "slow", "kept"])
def test_a_fully_sharded_model_has_the_bits_of_the_cpu(ranks, options):
    """Also where kernels are slow, and where no collective of a step can begin before the host is through with it."""
    for rank in ranks:
        assert rank["fully sharded"][options] == rank["fully sharded"]["cpu"]
    assert ranks[0]["fully sharded"]["cpu"] != ranks[1]["fully sharded"]["cpu"]


def test_a_storage_gives_its_memory_back_and_takes_it_again_under_its_tensors(ranks):
    for rank in ranks:
        assert rank["given back"] == (4096, 0, 4096, [7.0, 7.0])


def test_a_schedule_has_the_bits_of_its_simulation(ranks):
    for rank in ranks:
        assert rank["schedules"] == {"ring": True, "tree": True, "parameter_server": True}


def test_what_adds_on_the_host_refuses_tensors_of_the_device(ranks):
    for rank in ranks:
        assert rank["refusals"]["a rank program"].startswith(
            "InvalidArgument: buffer must be of a dtype that NumPy has"
        )
        assert rank["refusals"]["over"].startswith("InvalidArgument: tensor must be on the CPU")


def test_messages_from_device_to_device_come_back(ranks):
    for rank in ranks:
        assert rank["there and back"]


def test_an_emulated_link_carries_what_has_been_computed(ranks):
    for rank in ranks:
        assert rank["link"] == {"begun": True, "carried": True, "sum": [3.0], "average": [1.0]}


@each(("case", "share"), [("step", 1.0), ("layers", 0.4), ("observed", 0.8)])
def test_what_is_measured_takes_as_long_as_its_kernels(ranks, case, share):
    """The kernels of `measure_layers` are those of two passes, one of which counts."""
    for rank in ranks:
        measured, kernels = rank["clocks"][case]
        assert measured >= share * kernels > 0


def test_a_forecast_has_the_devices_moments(ranks):
    """The host is far ahead of kernels that are slow; every second update goes over an emulated link."""
    for rank in ranks:
        passes, kernels = rank["forecast"]["measured"]
        assert passes >= 0.4 * kernels > 0  # the others are the optimizer's, and the net's way to the device
        assert rank["forecast"]["held"] == [False, True, False, True]
        assert rank["forecast"]["gradients"] == [6] * 4


def test_calls_are_observed_after_forward(ranks):
    for rank in ranks:
        assert rank["clocks"]["order"]
        assert all(rank["clocks"]["calls"])
        assert rank["clocks"]["calls"]


def test_the_preset_for_gpus_trains_and_measures_steps_between_events(ranks):
    """Lines of two steps each; what is measured takes as long as its kernels, of which the host waits for none."""
    for rank in ranks:
        found = rank["trained"]
        assert found["steps"] == [(2, 2), (4, 2)]
        assert found["losses"] == pytest.approx(found["on the CPU"][1::2], rel=1e-2)
        assert found["fused"]
        assert found["traced"]
        assert found["seconds"] >= 0.8 * found["kernels"] > 0.1
        assert found["parts"] >= 0.2 * found["kernels"]  # launches alone take a hundredth
        assert found["memory"] >= found["least"] > 0
        assert found["bits"] == ranks[0]["trained"]["bits"]
        assert found["predicted"] > 0.05  # of some hundred kernels of a millisecond
        assert (found["about"]["device"], found["about"]["backend"]) == ("stand-in accelerator", "simccl")


def test_the_host_waits_for_nothing_until_it_is_asked_for_a_report(ranks):
    for rank in ranks:
        goes_on, losses = zip(*rank["advanced"].values(), strict=True)
        assert goes_on == (True, True)
        assert losses[0] == losses[1]


def test_accelerators_are_swept_over_their_own_backend(ranks):
    for rank in ranks:
        found = rank["swept"]
        assert (found["backend"], found["world"]) == ("simccl", 3)
        assert found["least"] >= 0.005


@each("name", MUTANTS)
def test_a_mistake_that_only_an_accelerator_shows_is_found(ranks, name):
    assert {rank["mutants"][name] for rank in ranks} != {"well"}
