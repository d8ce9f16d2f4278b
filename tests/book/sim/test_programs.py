"""Do the training programs run on an accelerator as on the CPU, with every strategy and option? One start of three."""

import importlib

import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = [*needs_sim, pytest.mark.proof]
SAME_LAYOUT = {"torch": "torch", "bucketed": "torch", "zero1": "torch", "naive": "naive", "hook": "naive"}
OTHERS = ["lora", "bf16", "checkpointing", "cnn", "accumulation", "fused"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    everything = importlib.import_module("tests.book.sim.program_ranks").everything
    folder = str(tmp_path_factory.mktemp("runs"))
    return start(everything, [(rank, 3, folder) for rank in range(3)], timeout=240)


@each("name", [*SAME_LAYOUT, *OTHERS])
def test_losses_are_those_of_the_cpu(ranks, name):
    """Attention is computed in another way there; products of bf16 are rounded elsewhere."""
    for rank in ranks:
        (cpu, _), (sim, _) = rank["programs"][name]
        assert sim == pytest.approx(cpu, rel=1e-2 if name == "bf16" else 1e-4)
        assert len(set(sim)) == len(sim)


@each("name", SAME_LAYOUT)
def test_strategies_that_send_the_same_buckets_end_with_the_same_bits(ranks, name):
    for rank in ranks:
        assert rank["programs"][name][1] == ranks[0]["programs"][SAME_LAYOUT[name]][1]


def test_a_resumed_run_ends_with_the_bits_of_one_that_was_never_ended(ranks):
    for rank in ranks:
        assert rank["resumed"] == {"torch": (True, 1), "zero1": (True, 1)}


def test_the_script_to_take_home_trains_and_goes_on_and_scales_losses(ranks):
    for rank in ranks:
        found = rank["script"]
        cpu, sim = found["measured"]
        assert sim == pytest.approx(cpu, rel=1e-4)
        assert found["resumed"] == ((1, 1), True)  # two steps in an epoch
        assert found["scale"] == 65536.0  # no step of these was too large


def test_the_script_for_adapters_trains_and_goes_on(ranks):
    for rank in ranks:
        cpu, sim = rank["adapters"]["measured"]
        assert sim == pytest.approx(cpu, rel=1e-3)
        assert rank["adapters"]["resumed"] == (2, True)


def test_the_script_for_full_sharding_trains_and_goes_on(ranks):
    for rank in ranks:
        cpu, sim, other = rank["sharded"]["measured"]
        assert sim == pytest.approx(cpu, rel=1e-4)
        assert other == pytest.approx(cpu, rel=1e-4)
        assert rank["sharded"]["resumed"] == (2, True)


def test_torchs_hooks_send_and_train_as_on_the_cpu(ranks):
    """But for PowerSGD's, whose callback waits for a collective: the device's own run on one thread."""
    for rank in ranks:
        for method, (cpu, sim, apart) in rank["compressed"].items():
            assert sim[0] == pytest.approx(cpu[0], rel=1e-4)
            assert sim[1] == cpu[1]
            assert apart == [False, False, method == "local", method == "local", False]


def test_the_script_for_post_local_sgd_trains_and_ends_with_equal_ranks(ranks):
    for rank in ranks:
        cpu, sim, apart = rank["post-local"]
        assert sim == pytest.approx(cpu, rel=1e-3, abs=1e-5)
        assert apart == 0
