"""Does a schedule train as torch's own all-reduce does, and are the replicas as equal as was foretold?"""

import importlib

import numpy as np
import pytest

from dpbook.collectives import agreement, in_own_order, record
from dpbook.ranks import start
from tests.collectives.programs import PROGRAMS

pytestmark = pytest.mark.processes
WRAPPERS = ["torch", "naive", "hook", "bucketed"]


WORLDS = [3, *(pytest.param(world, marks=pytest.mark.proof) for world in (2, 5))]


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request):
    world = request.param
    everything = importlib.import_module("tests.ddp.over_ranks").everything
    return start(everything, [(rank, world) for rank in range(world)], timeout=300)


def predicted(name, world):
    """Whether all ranks must end with the same bits, decided without training."""
    schedules = importlib.import_module("tests.ddp.over_ranks").schedules(world)
    if name == "own order":
        return agreement(in_own_order, world).agrees
    program = PROGRAMS.get(name.removesuffix(" program")) if name.endswith(" program") else None
    return agreement(record(program, world, 10 * world) if program else schedules[name]).agrees


@pytest.mark.parametrize("name", WRAPPERS)
def test_gloos_ring_as_a_schedule_has_the_bits_of_torchs_all_reduce_after_every_step(ranks, name):
    for rank in ranks:
        own, scheduled = rank["trajectories"][name]
        assert len(set(own)) == len(own) == 4  # the parameters move
        assert scheduled == own
    if name == "bucketed":
        assert ranks[0]["trajectories"][name][1] == ranks[0]["trajectories"]["torch"][0]


def test_another_order_of_summation_has_other_bits_from_three_ranks_on(ranks):
    """So that the test above can fail."""
    found = ranks[0]["algorithms"]
    assert (found["ring"] == found["gloo_ring"]) == (len(ranks) == 2)


def test_replicas_stay_equal_where_that_is_promised_and_part_where_it_is_not(ranks):
    world, drifting = len(ranks), set()
    for name in ranks[0]["algorithms"]:
        histories = [rank["algorithms"][name] for rank in ranks]
        equal = all(history == histories[0] for history in histories)
        assert equal == predicted(name, world), name
        drifting |= set() if equal else {name}
    assert drifting == {2: set(), 3: {"own order"}, 5: {"own order", "folded dissemination"}}[world]


def test_a_rank_program_sends_what_its_schedule_sends(ranks):
    for rank in ranks:
        for name in ("ring", "tree", "parameter_server"):
            assert rank["algorithms"][f"{name} program"] == rank["algorithms"][name]


def test_every_size_and_dtype_is_summed(ranks):
    world = len(ranks)
    for rank in ranks:
        assert len(rank["sums"]) == 3 * 6 * 6 - 6
        for how, size, dtype, result in rank["sums"]:
            expected = world * (np.arange(size) % 7) + world * (world - 1) // 2
            assert result == expected.tolist(), (how, size, dtype)


def test_a_call_returns_before_the_sum_is_there(ranks):
    world = len(ranks)
    for number, rank in enumerate(ranks):
        assert rank["early"] == ((False, [number + 1.0] * 5), [world * (world + 1) / 2] * 5)


def test_sums_are_complete_during_backward_but_for_the_naive_wrapper(ranks):
    for rank in ranks:
        assert rank["overlap"] == {"torch": True, "naive": False, "hook": True, "bucketed": True}


def test_other_messages_at_the_same_time_are_not_mixed_up(ranks):
    world = len(ranks)
    total = world * (world + 1) / 2
    for number, rank in enumerate(ranks):
        assert rank["undisturbed"] == [
            [10.0 * (total - world)], [total], [float((number - 1) % world)], [total], [float(world)], [2.0 * world]
        ]  # fmt: skip


def test_a_group_sums_over_its_own_ranks(ranks):
    assert ranks[0]["within"].startswith("InvalidArgument: group must be one that this rank belongs to")
    for rank in ranks[1:]:
        assert rank["within"] == [float(sum(range(len(ranks))))] * 7


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another world", "InvalidArgument: schedule must be for"),
        ("no all-reduce", "InvalidArgument: schedule must be an all-reduce"),
        ("a broken promise", "ScheduleError: too short: "),
        ("no schedule", "InvalidArgument: all_reduce must be a Schedule, a function that makes one, or a rank program"),
        ("makes no schedule", "InvalidArgument: all_reduce must be a Schedule, a function that makes one"),
        ("two dimensions", "InvalidArgument: buffer must be 1-D and contiguous"),
        ("another size", "InvalidArgument: size must be 9"),
        ("elsewhere", "InvalidArgument: tensor must be on the CPU or on the accelerator of this rank"),
        ("no array", "InvalidArgument: buffer must be of a dtype that NumPy has"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_on_every_rank(ranks, case, message):
    assert all(rank["refused"][case].startswith(message) for rank in ranks), ranks[0]["refused"][case]


@pytest.mark.parametrize("name", ["call", "torch", "bucketed"])
def test_what_the_thread_raises_is_raised_by_the_waiter_and_the_others_do_not_hang(ranks, name):
    raised = [rank["failing"][name] for rank in ranks]
    assert "ValueError: on purpose" in raised[1]
    assert all("on purpose" not in other and other.startswith("RuntimeError") for other in raised[:1] + raised[2:])


def test_after_a_failure_the_ranks_are_out_of_step_and_nothing_is_sent(ranks):
    for rank in ranks:
        assert rank["failing"]["next call"].startswith("RankFailed: not started, because an earlier all-reduce failed:")


def test_a_process_ends_although_a_call_was_never_answered(ranks):
    assert [rank["left_behind"] for rank in ranks] == ["returned"] * len(ranks)
