"""Does the planner, fixed on one point, predict how Megatron-LM scales, whatever the chunks that nobody published?"""

from dpbook.book.ch13 import megatron_runs
from tests.cases import each

STRONG, WEAK = megatron_runs()


def test_the_fixed_point_is_met():
    assert STRONG[0].gpus == 96
    assert abs(STRONG[0].error()) < 0.003


@each(("chunks", "contention"), [(4, 0), (8, 0), (16, 0), (4, 0.5), (8, 0.5), (16, 0.5)])
def test_strong_scaling_is_within_a_tenth(chunks, contention):
    assert max(abs(run.error(chunks, contention)) for run in STRONG) < 0.1


def test_weak_scaling_is_within_a_tenth_but_for_the_smallest_model():
    errors = [abs(run.error()) for run in WEAK]
    assert errors[0] > 0.1
    assert max(errors[1:]) < 0.1


def test_with_the_contention_of_mosaicml_three_of_the_growing_models_are_missed():
    errors = [run.error(contention=0.5) for run in WEAK]
    assert sum(abs(error) > 0.1 for error in errors) == 3
    assert round(min(errors), 2) == -0.27


def test_without_chunks_the_largest_worlds_are_missed():
    assert STRONG[-1].error(chunks=1) < -0.25
    assert all(run.error(chunks=1) < -0.15 for run in WEAK if run.stages > 1)


def test_what_is_read_off_the_plot_agrees_with_what_is_printed():
    """The README prints 47 % of 989 TFLOP/s on 96 GPUs, and 42 % on 4,608."""
    assert round(STRONG[0].reached / 9.89) == 47
    assert round(STRONG[-1].reached / 9.89) == 42
    assert STRONG[5].reached == WEAK[6].reached
