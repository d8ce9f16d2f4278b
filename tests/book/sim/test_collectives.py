"""Do collectives of the stand-in give what they must, and wait as NCCL's do? One start per world."""

import importlib

import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = needs_sim


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.proof), 3, pytest.param(4, marks=pytest.mark.proof)]
)
def ranks(request):
    world = request.param
    everything = importlib.import_module("tests.book.sim.collective_ranks").everything
    return start(everything, [(rank, world) for rank in range(world)], timeout=120)


def expected(name, rank, world):
    """By hand: rank r has given r + 1 or r, or a row of 10 r + place."""
    everyone, tens = range(world), 10 * sum(range(world))
    return {
        "all_reduce": [world * (world + 1) / 2] * 2,
        "all_reduce max": [world - 1.0] * 2,
        "broadcast": [1.0] * 2,
        "reduce": [world * (world + 1) / 2] * 2 if rank == 1 else None,
        "all_gather": [[float(r)] for r in everyone],
        "all_gather_into_tensor": [float(r) for r in everyone for _ in range(2)],
        "reduce_scatter": [tens + world * rank],
        "reduce_scatter_tensor": [tens + world * rank],
        "all_to_all": [[10.0 * r + rank] for r in everyone],
        "all_to_all_single": [10.0 * r + rank for r in everyone],
        "gather": [[float(r) if rank == 0 else 0.0] for r in everyone],
        "scatter": [float(rank)],
        "send": [0.0 if rank == 1 else float(rank)] * 2,
        "batch": [float((rank - 1) % world)] * 2,
        "objects": [f"rank {r}" for r in everyone],
    }[name]


@each("name", [
    "all_reduce", "all_reduce max", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "send", "batch", "objects",
])  # fmt: skip
def test_a_collective_gives_every_rank_what_it_must(ranks, name):
    found = [rank["results"][name] for rank in ranks]
    assert found == [expected(name, rank, len(ranks)) for rank in range(len(ranks))]


def test_a_sum_that_nobody_waits_for_is_read_too_early(ranks):
    assert [rank["waiting"]["early"] for rank in ranks] == [[r + 1.0] * 2 for r in range(len(ranks))]


def test_wait_lets_the_stream_wait_and_the_host_go_on(ranks):
    total = sum(range(len(ranks) + 1))
    for rank in ranks:
        assert rank["waiting"]["pending"] is False
        assert rank["waiting"]["stalled"] is False
        assert rank["waiting"]["late"] == [total] * 2
        assert rank["waiting"]["done"] is True


def test_a_future_has_the_sum(ranks):
    assert [rank["waiting"]["future"] for rank in ranks] == [[float(len(ranks))] * 2] * len(ranks)


def test_a_collective_begins_after_the_callers_stream_and_groups_run_beside_each_other(ranks):
    world = len(ranks)
    for rank in ranks:
        finished, behind, beside = rank["order"]
        assert finished == (False, True)
        assert behind == [world * (world + 1) / 2] * 2
        assert beside == [world] * 2


def test_collectives_that_are_over_keep_no_memory(ranks):
    for rank in ranks:
        assert rank["left over"] <= 20 * 512


def test_a_barrier_and_a_limit_hold_up_the_host(ranks):
    for rank in ranks:
        through, limited, value = rank["blocking"]
        assert through
        assert limited.startswith("DistBackendError: a collective of simccl timed out after 0:00:00.01")
        assert value == [float(len(ranks))] * 2


def test_a_group_for_the_device_alone_refuses_tensors_of_the_cpu(ranks):
    """In the words that a group of NCCL alone has for them."""
    for rank in ranks:
        found = rank["devices"]
        assert found["cpu, alone"] == "RuntimeError: No backend type associated with device type cpu"
        assert found["names"] == ("simccl", "simccl")


def test_gloo_takes_tensors_of_the_device_as_it_takes_those_of_cuda(ranks):
    assert [rank["devices"]["sim, gloo"] for rank in ranks] == [[sum(range(len(ranks) + 1))] * 2] * len(ranks)


def test_a_group_for_both_serves_both_but_not_in_one_call(ranks):
    for rank in ranks:
        assert rank["devices"]["cpu, both"] == [sum(range(len(ranks) + 1))] * 2
        assert rank["devices"]["mixed"].startswith("ValueError: Tensors must be on sim:0 and dense")


def test_two_ranks_that_first_send_and_then_receive_wait_for_ever_without_a_batch(ranks):
    """Until the time-out of one, which ends the other's wait too."""
    found = [rank["crossing"] for rank in ranks[:2]]
    assert all(error.startswith("RuntimeError: sim error: RuntimeError:") for error in found)
    assert any("Timed out" in error for error in found)


def test_torchs_ddp_trains_to_the_bits_of_the_cpu(ranks):
    """The same buckets over the same backend: on three ranks the order of each sum counts."""
    for rank in ranks:
        cpu, sim = rank["trained"]
        assert sim == cpu == ranks[0]["trained"][0]
