"""Does a fully sharded model train as one process does, in memory's and time's order? One start of five ranks."""

import importlib

import pytest

from dpbook.collectives import Link
from dpbook.overlap import Sharding, Unit, Wires, simulate_sharded
from dpbook.ranks import start
from tests.cases import each

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", params=[(1, 2, 3), pytest.param((1, 2, 3, 4, 5), marks=pytest.mark.proof)], ids=str)
def ranks(request, tmp_path_factory):
    everything = importlib.import_module("tests.ddp.sharded_ranks").everything
    folder, world = str(tmp_path_factory.mktemp("checkpoints")), max(4, *request.param)
    return start(everything, [(rank, folder, request.param) for rank in range(world)], timeout=300)


def of(ranks, name, world):
    """Results of each rank of a world."""
    return [rank[name, world] for rank in ranks[:world]]


def every_world(name):
    """In each world in which a scenario was played."""
    return each("world", lambda ranks: [world for played, world in ranks[0] if played == name])


@every_world("against_torch")
def test_five_steps_of_adamw_end_no_further_from_one_process_than_torchs(ranks, world):
    found = of(ranks, "against_torch", world)[0]
    assert sum(run["ours"] for run in found) <= sum(run["torch"] for run in found) + 1e-7
    assert all(run["moves"] == 5 for run in found)


@every_world("against_torch")
def test_a_run_again_has_the_same_bits(ranks, world):
    assert all(run["equal"] for rank in of(ranks, "against_torch", world) for run in rank)


@every_world("same_bits")
def test_when_weights_are_gathered_kept_or_recomputed_changes_no_bit(ranks, world):
    for rank in of(ranks, "same_bits", world):
        assert {name for name, bits in rank.items() if bits != rank["plain"]} == set()


@every_world("drawn")
def test_gradients_of_random_modules_are_those_of_one_process(ranks, world):
    """Frozen, tied, of two dtypes, units in units, sizes below the world; each element is on one rank."""
    worst = [max(found, key=lambda case: case[2]) for _, found in of(ranks, "drawn", world)]
    assert len(of(ranks, "drawn", world)[0][1]) > 50
    assert all(error < 2e-5 for *_, error in worst), worst


@every_world("drawn")
def test_random_modules_gather_as_far_ahead_as_they_should_and_wait_as_late(ranks, world):
    assert [wrong for wrong, _ in of(ranks, "drawn", world)] == [[]] * world


@every_world("accumulated")
def test_accumulation_is_the_whole_batch_with_and_without_no_sync(ranks, world):
    for rank in of(ranks, "accumulated", world):
        assert rank["no sync"]["error"] < 1e-6
        assert rank["synced"]["error"] < 1e-6


@every_world("accumulated")
def test_no_sync_sends_no_gradient_and_keeps_them_whole(ranks, world):
    for rank in of(ranks, "accumulated", world):
        sums, nbytes = rank["no sync"]["inside"]
        trained = rank["no sync"]["trained"]
        assert sums == 0
        assert trained <= nbytes <= trained + 4 * 4 * world  # four rows, padded
        assert rank["synced"]["sums"] == 3 * rank["no sync"]["sums"] > 0


@every_world("accumulated")
def test_zero_grad_drops_what_no_sync_has_kept(ranks, world):
    for rank in of(ranks, "accumulated", world):
        assert rank["no sync"]["zeroed"] == rank["no sync"]["fresh"]


@every_world("norms")
def test_the_norm_is_that_of_all_shards_and_what_is_clipped_has_the_limit(ranks, world):
    for rank in of(ranks, "norms", world):
        for norm, expected, after, limit in rank:
            assert norm == pytest.approx(expected, rel=1e-5)
            assert after == pytest.approx(limit, rel=1e-4)


@every_world("precision")
def test_bf16_travels_to_compute_and_fp32_to_sum(ranks, world):
    for rank in of(ranks, "precision", world):
        assert rank["gathers"] == ["torch.bfloat16"]
        assert rank["sums"] == rank["kept"] == ["torch.float32"]
        assert rank["apart"] < 2e-3
    averages = [value for rank in of(ranks, "precision", world) for value in rank["average"]]
    assert averages == pytest.approx([(256 + world - 1) / world] * len(averages), rel=1e-6)  # bf16 has 8 bits


def test_a_prefetched_gather_is_begun_before_the_unit_before_it_computes_and_awaited_after(ranks):
    for rank in of(ranks, "order", 2):
        log, _ = rank["prefetch"]
        for k in range(1, 4):
            begun, awaited = log.index(("gather", str(k))), log.index(("waited", ("gather", str(k))))
            assert begun < log.index(("forward", str(k - 1))) < awaited < log.index(("forward", str(k)))


def test_without_prefetch_no_gather_is_under_way_while_a_unit_computes(ranks):
    """So that the test above can fail."""
    for rank in of(ranks, "order", 2):
        log, _ = rank["none"]
        for k in range(1, 4):
            assert log.index(("forward", str(k - 1))) < log.index(("gather", str(k)))
            assert log[log.index(("gather", str(k))) + 1] == ("waited", ("gather", str(k)))


def test_backward_gathers_the_other_way_round_and_sums_while_it_goes_on(ranks):
    for rank in of(ranks, "order", 2):
        log, _ = rank["prefetch"]
        backward = log[log.index(("forward", "3")) + 1 :]
        for k in range(3):
            begun, awaited = backward.index(("gather", str(k))), backward.index(("waited", ("gather", str(k))))
            assert begun < backward.index(("reduce", str(k + 1))) < awaited
        for k in (3, 2, 1):  # not awaited before the next unit's gradients are there
            assert backward.index(("waited", ("reduce", str(k)))) == backward.index(("reduce", str(k - 1))) - 1
        assert backward.index(("reduce", "1")) < backward.index(("backward over", None))


@each(("name", "most"), [("none", 1), ("prefetch", 2), ("two", 3), ("kept", 4)])
def test_as_many_units_are_whole_at_once_as_prefetch_says(ranks, name, most):
    for rank in of(ranks, "order", 2):
        whole, peak = set(), 0
        for what, unit, _ in rank[name][1]:
            whole = whole | {unit} if what == "gather" else whole - {unit} if what == "free" else whole
            peak = max(peak, len(whole))
        assert (peak, whole) == (most, set())


def test_events_are_a_units_life_in_its_order(ranks):
    forward = ["gather", "gathered", "forward", "free"]
    backward = ["gather", "gathered", "backward", "free", "reduce", "reduced"]
    for rank in of(ranks, "order", 2):
        for name, lives in {
            "prefetch": forward + backward,
            "none": forward + backward,
            "kept": forward[:3] + backward[2:],
        }.items():
            for unit in "0123":
                assert [what for what, of_unit, _ in rank[name][1] if of_unit == unit] == lives, (name, unit)


@each(
    ("name", "options"),
    [("prefetch", {}), ("none", {"prefetch": 0}), ("two", {"prefetch": 2}), ("kept", {"reshard": False})],
)
def test_the_simulated_step_begins_the_same_collectives_in_the_same_order(ranks, name, options):
    units = [Unit(str(k), 1.0, 2.0, k + 1) for k in range(4)]
    how = Sharding(3, 2, **options)
    spans = simulate_sharded(units, how, Wires.rings(how, Link(1e-3, 1e9))).timeline.spans
    simulated = [s.name for s in sorted(spans, key=lambda s: s.start) if s.kind == "communication"]
    for rank in of(ranks, "order", 2):
        begun = [f"{what} {unit}" for what, unit in rank[name][0] if what in ("gather", "reduce")]
        assert simulated == [one.replace("gather", "all-gather").replace("reduce", "reduce-scatter") for one in begun]


@every_world("adapters")
def test_frozen_weights_are_given_back_as_trained_ones_are(ranks, world):
    """When the unit before it begins, the one ahead of that is under way: three of six."""
    for most, left, error in of(ranks, "adapters", world):
        assert most <= 3.2
        assert left == 0
        assert error < 1e-5


@every_world("halves_of_ours")
def test_halves_of_ours_move_half_of_gloos_bytes(ranks, world):
    for rank in of(ranks, "halves_of_ours", world):
        (gloos, right), (ours, also_right) = rank["gloo"], rank["schedule"]
        assert right
        assert also_right
        assert gloos == pytest.approx(2 * (world - 1) / world, rel=0.02)
        assert ours == pytest.approx((world - 1) / world, rel=0.02)
        assert rank["apart"] < 1e-6


@every_world("halves_of_ours")
def test_what_is_no_half_is_refused(ranks, world):
    for rank in of(ranks, "halves_of_ours", world):
        ring, other_world, no_schedule = rank["refused"]
        assert ring.startswith("InvalidArgument: half must be a reduce-scatter or an all-gather of one even chunk")
        assert other_world.startswith(f"InvalidArgument: half must be for {world} ranks")
        assert no_schedule.startswith("InvalidArgument: half must be a Schedule")


@every_world("refusals")
def test_bad_input_and_misuse_are_named(ranks, world):
    for rank in of(ranks, "refusals", world):
        assert rank["outside"].startswith("DpbookError: inner.weight is used outside its unit, inner")
        assert rank["changed"].startswith("DpbookError: the weights of the whole module changed between")
        assert rank["after"] == rank["fresh"] != []
        for name, words in {
            "twice": "module must be unwrapped first", "ddp": "module must be unwrapped first",
            "foreign unit": "units must be modules inside the one that is wrapped",
            "list": "units must be modules whose forward is called",
            "hidden": "the output of the module must be tensors, nested or not, got 'Output'",
            "prefetch": "prefetch must be an integer of at least 0",
            "no module": "module must be a torch.nn.Module", "sparse": "the gradient of weight must be dense",
            "state": "state_dict['weight'] must be of shape (4, 4), got (3, 3)",
            "optimizer": "optimizer must be of the parameters of this module",
            "copied": "module must be copied before it is wrapped", "assigned": "assign must be False",
            "pickled": "tensor must be of a state for torch.distributed.checkpoint",
            "added": "late must be there when the module is wrapped",
            "replaced": "bias must be there when the module is wrapped",
            "moved": "weight must be a slice of the shard", "converted": "weight must be a slice of the shard",
            "frozen later": "requires_grad of weight must be True: change it before wrapping",
            "penalty": "create_graph must be False", "hooked": "hooks of weight must be none",
            "hooked after": "hooks of weight must be none",
        }.items():  # fmt: skip
            assert rank[name].startswith(f"InvalidArgument: {words}"), rank[name]
        assert rank["alike"].startswith("ReplicasDiffer: ")
        assert rank["failed"] == "RuntimeError: in backward"
        assert rank["saved after it"] == rank["dropped after it"] == "accepted"


@every_world("uses")
def test_two_forwards_an_evaluation_and_an_optimizer_made_before_are_well(ranks, world):
    for rank in of(ranks, "uses", world):
        trained, shown, names = rank["two forwards"]
        assert trained < 1e-6
        assert shown < 1e-5
        assert names
        assert rank["unwrapped"] == "accepted"
        assert rank["loaded"] == rank["start"] == 0.0
        assert rank["prefixed"]
        assert rank["reentrant"] < 1e-6


@every_world("uses")
def test_a_backward_from_or_of_inside_a_unit_finds_its_weights_and_leaves_none(ranks, world):
    for rank in of(ranks, "uses", world):
        for name in (
            "aside alone", "aside too", "aside, one unit", "recomputed from outside", "gradients in forward",
        ):  # fmt: skip
            error, whole_left = rank[name]
            assert error < 1e-6
            assert whole_left == 0


@every_world("uses")
def test_a_module_without_parameters_has_a_norm_of_0(ranks, world):
    assert all(rank["no parameters"] == 0.0 for rank in of(ranks, "uses", world))


def test_replicas_sum_in_every_synced_backward_as_torchs_do_and_as_the_simulated_step_does(ranks):
    """Three micro-batches of two layers of 24 and 12 elements; a shard has half of them."""
    how = Sharding(3, 2, replicas=2)
    units = [Unit("0", 1.0, 2.0, 24), Unit("1", 1.0, 2.0, 12)]
    prices = Wires.rings(how, Link(1e-3, 1e9))
    simulated, once = (
        simulate_sharded(units, how, prices, accumulation=3, no_sync=no_sync).sent["all-reduce"]
        for no_sync in (False, True)
    )
    for rank in of(ranks, "hybrid", 4):
        assert rank["crossings"] == {"ours": [6, 12] * 3, "no sync": [6, 12], "torch": [6, 12] * 3}
        assert simulated == 4 * sum(rank["crossings"]["ours"])  # 2 (N − 1)/N of its bytes, of two replicas
        assert once == 4 * sum(rank["crossings"]["no sync"])


def test_what_had_no_gradient_is_saved_beside_training_and_loaded_on_fewer_ranks(ranks):
    for rank in ranks[:2]:
        went_on, loaded = rank["spare", 2]
        assert went_on < 1e-6
        assert loaded < 1e-6


def test_hybrid_sharding_trains_as_one_process_and_its_replicas_have_equal_bits(ranks):
    found = of(ranks, "hybrid", 4)
    assert all(rank["apart"] < 1e-6 for rank in found)
    assert found[0]["shards"] == found[2]["shards"] != found[1]["shards"]
    assert found[1]["shards"] == found[3]["shards"]
    assert all(rank["norm"][0] == pytest.approx(rank["norm"][1], rel=1e-4) for rank in found)


def test_a_checkpoint_of_three_ranks_goes_on_alike_on_two_and_one_and_in_torchs_own(ranks):
    """Saved by either kind: the parameters two steps later, and a learning rate that was not that of the loader."""
    for saver in ("sharded", "torchs"):
        reference, _ = ranks[0]["saved", 3][saver, "went on"]
        for loader in ("sharded", "torchs"):
            for world in (2, 1):
                values, rate = ranks[0]["saved", 3][saver, loader, world]
                assert rate == 0.03
                assert max(float((values[name] - reference[name]).abs().max()) for name in reference) < 1e-5
