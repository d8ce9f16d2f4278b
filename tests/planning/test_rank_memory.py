"""Does a rank's memory agree with the ZeRO paper, and is the smallest world the smallest that fits?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.planning import (
    MODELS,
    RECIPES,
    activation_bytes,
    memory_per_rank,
    sent_per_rank,
    smallest_world_that_fits,
)
from tests.cases import each

GB = 1e9
WORLDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)


@pytest.mark.parametrize(("stage", "printed"), [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")])
def test_the_zero_papers_figures_for_7_5_billion_on_64_ranks(stage, printed):
    assert f"{memory_per_rank(7_500_000_000, 64, stage).total / GB:.1f}" == printed


@each(
    ("parameters", "world", "printed"),
    [  # table 1 of the paper: GB under stages 1, 2 and 3
        (7_500_000_000, 4, (52.5, 41.3, 30)),
        (7_500_000_000, 16, (35.6, 21.6, 7.5)),
        (7_500_000_000, 256, (30.4, 15.4, 0.47)),
        (7_500_000_000, 1024, (30.1, 15.1, 0.12)),
        (128_000_000_000, 64, (536, 284, 32)),
        (1_000_000_000_000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_table_1_of_the_zero_paper(parameters, world, printed):
    found = [memory_per_rank(parameters, world, stage).total / GB for stage in (1, 2, 3)]
    assert found == pytest.approx(printed, rel=5e-3, abs=5e-3)  # as printed


def test_sixteen_bytes_per_parameter():
    assert memory_per_rank(7_000_000_000, 1).total == 112 * GB
    assert memory_per_rank(70_000_000_000, 1024).total == 1120 * GB


def test_what_zero_1_frees_for_70_billion_on_64_ranks():
    plain, sharded = (memory_per_rank(70_000_000_000, 64, stage).optimizer / GB for stage in (0, 1))
    assert round(plain - sharded) == 827  # the fp32 master copy is sharded too
    assert round((plain - sharded) * 8 / 12) == 551  # the two moments alone


def test_autocast_keeps_fp32_gradients():
    mixed, autocast = (memory_per_rank(1000, 1, recipe=recipe) for recipe in ("mixed", "autocast"))
    assert (mixed.gradients, autocast.gradients) == (2000, 4000)
    assert (mixed.total, autocast.total) == (16000, 18000)
    assert memory_per_rank(1000, 1, recipe="fp32").total == 16000
    assert memory_per_rank(1000, 1, recipe="fp32 gradients").total == 18000


def test_frozen_parameters_have_no_gradients_and_no_optimizer_state():
    memory = memory_per_rank(1000, 4, trainable=10)
    assert (memory.weights, memory.gradients, memory.optimizer) == (2000, 20, 120)


def test_a_bucket_copy_is_as_large_as_the_gradients():
    memory = memory_per_rank(1000, 4, bucket_copy=True)
    assert memory.buckets == memory.gradients == 2000
    assert memory.total == 18000


@each("recipe", RECIPES)
@each("world", WORLDS)
def test_the_shards_of_all_ranks_make_up_the_whole(world, recipe):
    """But for the copies of autocast, which every rank keeps."""
    whole, shard = memory_per_rank(840 * 10**6, 1, recipe=recipe), memory_per_rank(840 * 10**6, world, 3, recipe)
    assert (shard.total - shard.copies) * world == pytest.approx(whole.total - whole.copies)
    assert shard.copies == whole.copies == (1680 * 10**6 if recipe == "autocast" else 0)


@each("world", WORLDS)
def test_a_higher_stage_never_needs_more(world):
    totals = [memory_per_rank(10**9, world, stage).total for stage in (0, 1, 2, 3)]
    assert totals == sorted(totals, reverse=True)


@given(
    st.integers(1, 10**12),
    st.floats(1e9, 1e12),
    st.integers(0, 3),
    st.sampled_from(sorted(RECIPES)),
    st.floats(0, 1e10),
)
def test_the_smallest_world_fits_and_one_rank_less_does_not(parameters, capacity, stage, recipe, activations):
    world = smallest_world_that_fits(parameters, capacity, stage, recipe, activations=activations)

    def need(ranks):
        return memory_per_rank(parameters, ranks, stage, recipe, activations=activations).total

    if world is None:
        assert need(10**15) > capacity * (1 - 1e-9)
    else:
        assert need(world) <= capacity * (1 + 1e-9)
        assert world == 1 or need(world - 1) > capacity * (1 - 1e-9)


def test_more_ranks_never_help_a_model_that_plain_data_parallelism_does_not_hold():
    assert smallest_world_that_fits(7_000_000_000, 80 * GB, 0) is None
    assert smallest_world_that_fits(7_000_000_000, 80 * GB, 1) == 2


@each("world", WORLDS)
def test_stage_3_sends_half_as_much_again(world):
    sent = [sent_per_rank(1000, world, stage) for stage in (0, 1, 2, 3)]
    assert sent[:3] == [pytest.approx(2 * (world - 1) / world * 2000)] * 3
    assert sent[3] == pytest.approx(1.5 * sent[0])


@each(
    ("stage", "times"),
    [(0, 4 + 4), (1, 4 + 2), (2, 3 * 4 + 2), (3, 3 * (4 + 2 + 2))],  # bytes per parameter: gradients 4, weights 2
)
def test_stages_2_and_3_send_in_each_of_three_micro_batches(stage, times):
    sent = sent_per_rank(1000, 5, stage, itemsize=4, weights=2, accumulation=3)
    assert sent == pytest.approx(times * 4 / 5 * 1000)


def test_activations_follow_the_formula():
    model = MODELS["Llama-2 7B"]
    assert activation_bytes(model, 4096) == 34 * 4096 * 4096 * 32
    assert activation_bytes(model, 4096, checkpointing=True) * 17 == activation_bytes(model, 4096)


@each(
    ("call", "name"),
    [
        (lambda: memory_per_rank(0, 1), "parameters"),
        (lambda: memory_per_rank(10, 0), "world"),
        (lambda: memory_per_rank(10, 1, 4), "stage"),
        (lambda: memory_per_rank(10, 1, recipe="fp4"), "recipe"),
        (lambda: memory_per_rank(10, 1, trainable=11), "trainable"),
        (lambda: memory_per_rank(10, 1, 1, bucket_copy=True), "bucket_copy"),
        (lambda: memory_per_rank(10, 1, activations=-1), "activations"),
        (lambda: smallest_world_that_fits(10, 80e9, 5), "stage"),
        (lambda: sent_per_rank(10, 1.5), "world"),
        (lambda: activation_bytes(MODELS["Qwen3 4B"], 0), "tokens"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()


def test_its_repr_adds_up():
    assert repr(memory_per_rank(7_500_000_000, 64, 1)) == (
        "31.4 GB per rank (weights 15.0, gradients 15.0, optimizer 1.4)"
    )
