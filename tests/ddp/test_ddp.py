"""Do the wrappers train as torch's DDP does, bit for bit, and say what is wrong? One start per world."""

import importlib

import numpy as np
import pytest

from dpbook.overlap import Tensor, per_tensor_plan, plan
from dpbook.ranks import start

pytestmark = pytest.mark.processes
WRAPPERS = ["naive", "hook", "bucketed"]
BUFFERS = 3  # of the batch norm in `Tied`


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.proof), 3])
def ranks(request):
    world = request.param
    everything = importlib.import_module("tests.ddp.ddp_ranks").everything
    return start(everything, [(rank, world) for rank in range(world)], timeout=240)


def same_on_all(ranks, *path):
    """The value at ``path`` of each rank's result, which must be one."""
    values = []
    for rank in ranks:
        for key in path:
            rank = rank[key]
        values.append(rank)
    assert all(value == values[0] for value in values[1:]), path
    return values[0]


@pytest.mark.parametrize("name", WRAPPERS)
def test_all_ranks_begin_with_rank_0s_values(ranks, name):
    assert same_on_all(ranks, "trajectories", "start", name) == ranks[0]["trajectories"]["start"]["torch"]


@pytest.mark.parametrize("options", ["plain", "kept", "accumulated"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_replicas_are_equal_after_every_step(ranks, name, options):
    """Parameters: the statistics of batch norm are each rank's own until the next forward."""
    trained = [[step[:-BUFFERS] for step in rank["trajectories"][options][name]] for rank in ranks]
    assert all(steps == trained[0] for steps in trained)
    assert len({repr(step) for step in trained[0]}) == len(trained[0])  # and they move


@pytest.mark.parametrize("options", ["plain", "kept", "accumulated"])
def test_bucketed_has_the_bits_of_torchs_ddp_after_every_step(ranks, options):
    """With three ranks the chunks of a bucket decide the order of summation: the layouts must agree too."""
    for rank in ranks:
        assert rank["trajectories"][options]["bucketed"] == rank["trajectories"][options]["torch"]


@pytest.mark.parametrize("options", ["plain", "kept", "accumulated"])
def test_naive_and_hook_send_the_same_messages_and_have_the_same_bits(ranks, options):
    """On two ranks torch's too: a sum of two has no order."""
    for rank in ranks:
        found = rank["trajectories"][options]
        assert found["naive"] == found["hook"]
        assert len(ranks) > 2 or found["naive"] == found["torch"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_messages_that_are_late_by_chance_change_no_bit(ranks, name):
    for rank in ranks:
        late = rank["trajectories"]["delayed"][name]
        assert late == rank["trajectories"]["plain"][name][: len(late)]


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_gradient_is_that_of_the_big_batch(ranks, name):
    """The bound of `dpbook.replicas`: rounding of a sum of N terms, in units of float32's epsilon."""
    for rank in ranks:
        for averaged, whole in rank["big_batch"][name]:
            bound = 64 * np.finfo(np.float32).eps * max(np.abs(whole).max(), 1e-3)
            assert np.abs(averaged - whole).max() <= bound


@pytest.mark.parametrize("name", WRAPPERS)
def test_no_sync_keeps_gradients_local_and_the_next_backward_sends_their_sum(ranks, name):
    inside = [rank["local_then_synced"][name][0] for rank in ranks]
    assert inside[0] != inside[1]
    assert {rank["local_then_synced"][name][2] for rank in ranks} == {0}
    after = [rank["local_then_synced"][name][1] for rank in ranks]
    assert all(a == after[0] for a in after)


@pytest.mark.parametrize("name", WRAPPERS)
def test_ranks_may_become_ready_in_different_orders(ranks, name):
    assert same_on_all(ranks, "crossed", name)
    if name == "bucketed" or len(ranks) == 2:
        assert ranks[0]["crossed"][name] == ranks[0]["crossed"]["torch"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_unused_parameters_are_named(ranks, name):
    for rank in ranks:
        error = rank["unused"]["error"][name]
        assert error.startswith("UnusedParameters: no gradient for b.weight, b.bias:")
        assert "find_unused=True" in error
    assert same_on_all(ranks, "unused", "after", name)


@pytest.mark.parametrize("name", WRAPPERS)
def test_unused_parameters_are_found_as_torch_finds_them(ranks, name):
    found = same_on_all(ranks, "unused", "found", name)
    torchs = ranks[0]["unused"]["found"]["torch"]
    assert [[g is None for g in step] for step in found] == [[g is None for g in step] for step in torchs]
    if len(ranks) == 2:
        assert found == torchs
    values, torchs_values = (
        np.concatenate([np.frombuffer(g, np.float32) for step in steps for g in step if g is not None])
        for steps in (found, torchs)
    )
    np.testing.assert_allclose(values, torchs_values, rtol=1e-5, atol=1e-6)  # of three terms each has its own order
    assert found[5][2:4] == found[4][2:4]  # nobody used b: kept


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_bucket_of_large_and_small_gradients_is_scaled_once(ranks, name):
    found = same_on_all(ranks, "large", name)
    if name == "bucketed" or len(ranks) == 2:
        assert found == ranks[0]["large"]["torch"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_autocast_keeps_fp32_gradients_and_torchs_bits(ranks, name):
    values, dtypes = same_on_all(ranks, "precisions", "autocast", name)
    assert set(dtypes) == {"torch.float32"}
    if name == "bucketed" or len(ranks) == 2:
        assert values == ranks[0]["precisions"]["autocast"]["torch"][0]


@pytest.mark.parametrize("kind", ["checkpointed", "reentrant"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_checkpointed_blocks_are_synced_once(ranks, name, kind):
    """A re-entrant checkpoint has a backward of its own, which ends before the outer one does."""
    values = same_on_all(ranks, "precisions", kind, name)
    if name == "bucketed" or len(ranks) == 2:
        assert values == ranks[0]["precisions"][kind]["torch"]


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_weight_in_two_reentrant_checkpoints_is_refused(ranks, name):
    """Its first gradient may be on the way when the second comes: averaged in part, and no replica equal."""
    for rank in ranks:
        assert "got a second gradient in one backward" in rank["precisions"]["tied"][name]


@pytest.mark.parametrize("name", WRAPPERS)
def test_gradients_have_the_memory_format_of_their_weights(ranks, name):
    weights, found, values = same_on_all(ranks, "precisions", "channels_last", name)
    assert found == weights
    assert weights[0] == (27, 1, 9, 3)
    if name == "bucketed" or len(ranks) == 2:
        assert values == ranks[0]["precisions"]["channels_last"]["torch"][2]


def parameters():
    """Tensors that `Tied` trains, by hand: the tied weight once, no frozen one."""
    return [
        Tensor("embed.weight", (11, 8)), Tensor("conv.weight", (8, 8, 3)), Tensor("conv.bias", 8),
        Tensor("norm.weight", 8), Tensor("norm.bias", 8),
        Tensor("wide.weight", (8, 8), "float64"), Tensor("wide.bias", 8, "float64"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_calls_and_bytes_are_counted(ranks, name):
    book = same_on_all(ranks, "books", name)
    payload = sum(t.nbytes for t in parameters())
    calls = {"naive": [7, 7, 7], "hook": [7, 7, 7], "bucketed": [2, *[book["plan"][0]] * 2]}[name]
    assert book["traffic"] == (3, sum(calls), 3 * payload)
    assert book["plan"][1] == book["first"][1] == payload
    if name == "bucketed":
        assert book["plan"][0] == plan(parameters(), 800, None).calls > 2
    else:
        assert book["plan"][0] == per_tensor_plan(parameters()).calls


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_inner_modules_state_and_views_of_the_buckets(ranks, name):
    book = same_on_all(ranks, "books", name)
    assert book["state"]
    assert "All keys matched" in book["loads"]
    assert book["views"]
    assert book["frozen"]
    assert book["twice"].startswith("InvalidArgument: module must be unwrapped first")
    assert book["unwrapped"] == "accepted"


def test_only_naive_waits_for_the_end_of_backward(ranks):
    times = {name: same_on_all(ranks, "in_time", name) for name in WRAPPERS}
    assert times["naive"] == ["backward over", *["sent"] * 10]
    assert times["hook"].index("backward over") == 10 or times["hook"].index("backward over") >= 8
    assert 0 < times["bucketed"].index("backward over") <= times["bucketed"].count("sent")


def test_faults_are_named_on_every_rank(ranks):
    for rank in ranks:
        found = rank["faults"]
        assert found["recovered"] == dict.fromkeys(WRAPPERS, True)
        assert found["shape"].startswith(
            "ReplicasDiffer: the modules of ranks 0 and 1 differ: rank 0 has weight (4, 3) torch.float32, trained"
        )
        assert "rank 1 has bias (4,) torch.float32, not trained" in found["trained"]
        assert "a module with parameters that are trained" in found["nothing"]
        assert "a torch.nn.Module, got 'model'" in found["no module"]
        assert found["sparse"].startswith("InvalidArgument: the gradient of weight must be dense")
        assert found["order"].startswith("InvalidArgument: order must be the numbers of the 2 trained parameters")
        assert found["only inputs"] == 0
