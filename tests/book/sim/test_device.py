"""Does the stand-in behave as an accelerator does? One process for all questions."""

import importlib
import itertools

import numpy as np
import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = needs_sim


@pytest.fixture(scope="module")
def facts():
    (found,) = start(importlib.import_module("tests.book.sim.device_ranks").everything, [()])
    return found


def test_work_is_queued_and_its_values_come_later(facts):
    assert facts["queue"] == {"held": (False, False), "values": [2.0] * 3, "done": True}


def test_a_timer_around_calls_measures_none_of_the_kernels(facts):
    """The stream stood still until the timer was read: whatever it shows, no kernel is in it."""
    clocks = facts["clocks"]
    assert clocks["ran meanwhile"] == 0
    assert min(clocks["waited"] - clocks["launched"], clocks["events"]) >= 5 * 0.02


def test_kernels_are_watched_in_the_order_in_which_they_ran(facts):
    spans = facts["clocks"]["spans"]
    assert [span.name for span in spans] == ["aten.add.out"] * 5
    assert all(span.launched <= span.begin <= span.end - 0.02 for span in spans)
    assert all(a.end <= b.begin and a.launched <= b.launched for a, b in itertools.pairwise(spans))


def test_events_that_measure_no_time_say_so(facts):
    assert "enable_timing=True" in facts["clocks"]["untimed"]
    assert "must be completed" in facts["clocks"]["not recorded"]


def test_a_second_stream_goes_on_by_itself_and_sees_old_values(facts):
    assert facts["streams"]["early"] == [1.0] * 3


def test_an_event_orders_two_streams(facts):
    assert facts["streams"]["behind the event"] is False
    assert facts["streams"]["late"] == [2.0] * 3


def test_a_stream_is_current_in_its_block_alone(facts):
    assert facts["streams"]["inside"]
    assert facts["streams"]["afterwards"]


def test_memory_is_counted_as_the_host_takes_and_drops_it(facts):
    """4,000 bytes take 4,096; kernels that still wait count for nothing."""
    assert facts["memory"] == {"counted": (8192, 4096, 0, 8192), "kept": 8192, "given up": 0, "same": True}


def test_freed_memory_is_overwritten_under_another_streams_hands_unless_that_is_told(facts):
    assert facts["handed over"] == [([7.0], [7.0]), ([1.0], [7.0])]


def test_torch_finds_the_accelerator_and_its_module(facts):
    assert facts["device"] == {
        "accelerator": "sim", "count": 1, "index": 0, "available": True, "module": True, "of": "sim:0", "cuda": False,
        "name": "stand-in accelerator",
    }  # fmt: skip


@each("case", ["sum", "product", "in place", "cat", "model", "batch", "tokens", "targets", "out", "total"])
def test_tensors_of_two_devices_are_refused(facts, case):
    assert facts["mixed"][case].startswith("RuntimeError: Expected all tensors to be on the same device, but found")


def test_numbers_and_indices_of_the_cpu_are_taken(facts):
    assert facts["mixed"]["number"] == [[3.0, 3.0], [3.0, 3.0]]
    assert facts["mixed"]["indices"] == [[1.0, 1.0]]


def test_an_array_cannot_look_into_its_memory(facts):
    assert facts["mixed"]["array"].startswith("TypeError: can't convert sim:0 device type tensor to numpy")


def test_what_a_kernel_raises_is_raised_once_by_who_waits(facts):
    went_on, first, second = facts["late error"]
    assert went_on
    assert first.startswith("RuntimeError: sim error: IndexError: index out of range")
    assert second == "accepted"


def test_who_waits_for_the_device_waits_for_all_streams_though_one_has_failed(facts):
    assert facts["error beside work"] == ("RuntimeError", True)


def test_what_a_hook_raises_ends_backward_and_not_the_process(facts):
    assert facts["hook error"] == (["KeyError: 'label'"] * 2, [2.0, 2.0])


def test_what_the_host_reads_has_been_computed(facts):
    assert facts["host reads"] == (11.0, [0, 2], [3.0, 5.0], [4.0, 1.0, 6.0], True, [4.0, 1.0, 6.0])


def test_a_copy_to_the_cpu_without_blocking_is_read_too_early(facts):
    assert facts["without blocking"] == ([0.0, 0.0], [1.0, 1.0])


def test_training_goes_as_on_the_cpu(facts):
    """Not to the bit: for some operations torch has another way on the CPU."""
    (losses, cpu), (again, sim) = facts["trained"]
    assert again == pytest.approx(losses, rel=1e-6)
    assert losses[-1] < losses[0]
    assert all(np.abs(a - b).max() <= 1e-5 * max(np.abs(a).max(), 1) for a, b in zip(cpu, sim, strict=True))


def test_attention_has_the_gradients_of_the_cpu(facts):
    cpu, sim = facts["attention"]
    assert np.abs(cpu - sim).max() <= 1e-5 * np.abs(cpu).max()


def test_a_module_keeps_its_parameters_and_files_bring_them_back(facts):
    assert facts["modules"] == {
        "kept": True, "where": "sim", "devices": ["sim", "cpu", "sim"], "values": [True] * 3, "shared": 4 * 11 * 8,
        "loaded": True, "equal": True,
    }  # fmt: skip


def test_autocast_computes_products_in_the_low_dtype_alone(facts):
    assert facts["precision"] == ("torch.bfloat16", "torch.float32", "torch.float32")


def test_random_numbers_are_the_devices_own_and_can_be_brought_back(facts):
    assert facts["chance"] == (True, True, True, True)
