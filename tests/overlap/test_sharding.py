"""Do the time, the bytes and the memory of sharded steps agree with calculations by hand and closed forms?"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import Link
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import (
    STATE,
    Layer,
    Sharding,
    Sizes,
    Tensor,
    Unit,
    Wires,
    equal_units,
    hook,
    simulate_sharded,
    simulate_step,
    units_of,
)
from tests.cases import each


def wires(gather=0.0, scatter=0.0, reduce=0.0, across=0.0):
    """Return prices that are these seconds for any number of bytes."""
    return Wires(lambda n: gather, lambda n: scatter, lambda n: reduce, lambda n: across)


def rows(step, lane):
    """Return (name, start, end) of the spans in a lane, in order."""
    return [(s.name, s.start, s.end) for s in step.timeline.spans if s.lane == lane]


# By hand: time


def test_stage_3_exposes_the_first_gather_of_each_pass_and_the_last_reduce_scatter():
    units = equal_units(3, 3, 6, 30)
    step = simulate_sharded(units, Sharding(3, 2), wires(gather=1, scatter=1))
    assert rows(step, "communication") == [
        ("all-gather 1", 0, 1),
        ("all-gather 2", 1, 2),
        ("all-gather 3", 2, 3),
        ("all-gather 3", 4, 5),
        ("all-gather 2", 5, 6),
        ("reduce-scatter 3", 7, 8),
        ("all-gather 1", 8, 9),
        ("reduce-scatter 2", 9, 10),
        ("reduce-scatter 1", 11, 12),
    ]
    assert rows(step, "compute") == [
        ("forward 1", 1, 2),
        ("forward 2", 2, 3),
        ("forward 3", 3, 4),
        ("backward 3", 5, 7),
        ("backward 2", 7, 9),
        ("backward 1", 9, 11),
    ]
    assert step.timeline.exposed() == 3


def test_without_prefetch_nothing_runs_at_the_same_time():
    step = simulate_sharded(equal_units(3, 3, 6, 30), Sharding(3, 2, prefetch=0), wires(gather=1, scatter=1))
    assert step.duration == 9 + 6 + 3
    assert step.timeline.hidden() == 0


TIGHT = Sharding(3, 2)
"""Two units whose collectives take longer than the computation that hides them; times and bytes below are by hand."""


def tight(sharding=TIGHT, **options):
    units = equal_units(2, 2, 4, 20, activations=14, input=2)
    return simulate_sharded(units, sharding, wires(gather=3, scatter=3), sizes=Sizes(1, 1, 2), **options)


def test_collectives_that_are_longer_than_their_cover():
    assert rows(tight(), "communication") == [
        ("all-gather 1", 0, 3),
        ("all-gather 2", 3, 6),
        ("all-gather 2", 7, 10),
        ("all-gather 1", 10, 13),
        ("reduce-scatter 2", 13, 16),
        ("reduce-scatter 1", 16, 19),
    ]
    assert rows(tight(), "compute") == [
        ("forward 1", 3, 4), ("forward 2", 6, 7), ("backward 2", 10, 12), ("backward 1", 13, 15),
    ]  # fmt: skip


@each(
    ("sharding", "seconds"),
    [
        (replace(TIGHT, reshard=False), 6 + 1 + 2 + 3 + 3),  # backward 2, then its reduction, that of 1 right after it
        (replace(TIGHT, recompute=True), 7 + 3 + 3 + 3 + 3),  # 13 to 16 forward and backward of 1, meanwhile the sum
        (replace(TIGHT, prefetch=2), 19),
        (Sharding(2, 2), 2 + 2 + 3 + 3 + 6),
        (Sharding(1, 2), 2 + 2 + 3 + 3 + 6),
        (Sharding(1, 2, behind_forward=True), 6 + 1 + 2 + 3 + 3),
    ],
)
def test_what_a_choice_does_to_the_time(sharding, seconds):
    assert tight(sharding).duration == seconds


def test_a_shard_is_updated_in_its_share_of_the_time_and_new_weights_go_out_after_it():
    step = tight(Sharding(1, 2), optimizer=4)
    assert rows(step, "compute")[-1] == ("optimizer", 10, 12)
    assert rows(step, "communication")[-2:] == [("all-gather 1", 12, 15), ("all-gather 2", 15, 18)]
    plain = simulate_sharded(equal_units(2, 2, 4, 20), Sharding(0, 2), wires(reduce=3), optimizer=4)
    assert rows(plain, "compute")[-1] == ("optimizer", 10, 14)


def test_replicas_sum_a_shard_whenever_it_is_reduced_and_with_no_sync_once():
    step = simulate_sharded(
        equal_units(1, 1, 2, 10), Sharding(3, 2, replicas=3), wires(gather=1, scatter=1, across=5), accumulation=2
    )
    micro_batch = ["all-gather 1", "all-gather 1", "reduce-scatter 1", "all-reduce 1"]
    assert [name for name, *_ in rows(step, "communication")] == 2 * micro_batch
    assert step.duration == 2 * (1 + 1 + 1 + 2 + 1 + 5)
    once = simulate_sharded(step.units, step.sharding, wires(1, 1, across=5), accumulation=2, no_sync=True)
    assert [name for name, *_ in rows(once, "communication")] == [*micro_batch[:2], *micro_batch]


@each("stage", [0, 1, 2, 3])
def test_a_unit_without_weights_sends_nothing(stage):
    units = (equal_units(1, 1, 2, 10)[0], Unit("relu", 1, 2, 0))
    step = simulate_sharded(units, Sharding(stage, 2), wires(1, 1, 1))
    assert {name.split()[-1] for name, *_ in rows(step, "communication")} == {"1"}


def test_a_unit_that_is_kept_is_gathered_once_in_a_micro_batch():
    units = (replace(equal_units(1, 2, 4, 20)[0], name="all", stays_gathered=True), *equal_units(2, 2, 4, 20))
    names = [name for name, *_ in rows(simulate_sharded(units, Sharding(3, 2), wires(1, 1)), "communication")]
    assert (names.count("all-gather all"), names.count("all-gather 1")) == (1, 2)


# By hand: memory


def changes(step):
    """Return the total bytes from each moment at which they change, by moment."""
    found, last = {}, None
    for time, nbytes in zip(step.memory.times.tolist(), step.memory.total.tolist(), strict=True):
        if nbytes != last:
            found[time] = last = nbytes
    return found


def test_memory_of_stage_3():
    """30 bytes of shards; 10 for each flat buffer of whole gradients, 5 for a reduced one, 7 for activations."""
    assert changes(tight()) == {
        0: 30 + 10,
        3: 30 + 20 + 7,
        4: 30 + 10 + 7,
        6: 30 + 10 + 14,  # unit 2 is freed at 7, and gathered again
        10: 30 + 20 + 14 + 10,
        12: 30 + 10 + 7 + 10,
        13: 30 + 10 + 7 + 20,
        15: 30 + 20,
        16: 30 + 10 + 5,
        19: 30,
    }
    assert (tight().memory.peak, tight().memory.peak_time) == (74, 10)


def test_memory_with_recomputation():
    """One byte for the input of each unit; activations live during its recomputation and its backward."""
    assert changes(tight(replace(TIGHT, recompute=True))) == {
        0: 30 + 10,
        3: 30 + 20 + 1,
        4: 30 + 10 + 1,
        6: 30 + 10 + 2,
        10: 30 + 20 + 2 + 7,
        11: 30 + 20 + 2 + 7 + 10,
        13: 30 + 10 + 1 + 7 + 10,
        14: 30 + 10 + 1 + 7 + 20,
        16: 30 + 10 + 5,
        19: 30,
    }


@each(
    ("stage", "expected"),
    [  # state; forward at 0 and 1, backward at 2 and 4; reductions end at 7 and 10
        (0, {0: 60 + 7, 1: 60 + 14, 2: 60 + 14 + 10, 4: 60 + 7 + 20, 6: 60 + 20, 10: 60}),
        (1, {0: 40 + 7, 1: 40 + 14, 2: 40 + 14 + 10, 4: 40 + 7 + 20, 6: 40 + 20, 10: 40}),
        (2, {0: 40 + 7, 1: 40 + 14, 2: 40 + 14 + 10, 4: 40 + 7 + 20, 6: 40 + 20, 7: 40 + 15, 10: 40}),
    ],
)
def test_memory_of_the_other_stages(stage, expected):
    units = equal_units(2, 2, 4, 20, activations=14)
    step = simulate_sharded(units, Sharding(stage, 2), wires(scatter=3, reduce=3), sizes=Sizes(1, 1, 2))
    assert changes(step) == expected


def test_whole_gradients_stay_until_the_next_unit_has_made_its_own():
    """Backward 2 from 2 to 4, reduced at 4.5; backward 1 until 6, reduced at 6.5."""
    units = equal_units(2, 2, 4, 20)
    step = simulate_sharded(units, Sharding(2, 2), wires(scatter=0.5), sizes=Sizes(1, 1, 2), optimizer=2)
    found = [(step.memory.at(t)["gradients"], step.memory.at(t)["reduced"]) for t in (3, 4.2, 5, 6.2, 7, 8)]
    assert found == [(10, 0), (20, 0), (20, 0), (10, 5), (0, 10), (0, 0)]


def test_scratch_is_there_while_backward_runs():
    plain = tight()
    units = [replace(unit, scratch=100) for unit in plain.units]
    more = simulate_sharded(units, TIGHT, wires(gather=3, scatter=3), sizes=Sizes(1, 1, 2))
    for time in (1, 3.5, 6.5, 8, 10.5, 12.5, 13.5, 15.5, 17, 19):
        backward = 10 <= time < 12 or 13 <= time < 15
        assert sum(more.memory.at(time).values()) - sum(plain.memory.at(time).values()) == 100 * backward


def test_bf16_over_fp32_shards():
    """7 parameters on 2 ranks: shards of 4; 2 bytes of a gathered weight, 4 of all else, 8 of the moments."""
    step = simulate_sharded([Unit("1", 1, 1, 7)], Sharding(3, 2), wires(1, 1), sizes=Sizes(2, 4, 8, shard=4))
    assert step.memory.at(0) == {
        "optimizer": 32, "weights": 16, "gathered": 14, "gradients": 0, "reduced": 0, "activations": 0,
    }  # fmt: skip
    assert [step.memory.at(t)["gradients"] for t in (2.5, 3, 4.5, 5)] == [0, 28, 28, 0]
    assert step.memory.peak == 32 + 16 + 14 + 28


def test_frozen_weights_are_gathered_and_have_no_gradient():
    step = simulate_sharded([Unit("1", 1, 1, 10, frozen=6)], Sharding(3, 2), wires(1, 1), sizes=Sizes(1, 1, 2))
    assert step.sent == {"all-gather": 2 * 10 / 2, "reduce-scatter": 4 / 2, "all-reduce": 0}
    assert step.memory.peak == 5 + 2 * 2 + 10 + 4


def test_without_sync_whole_gradients_stay_from_one_micro_batch_to_the_next():
    often, once = (
        simulate_sharded(
            equal_units(2, 2, 4, 20), Sharding(2, 2), wires(), sizes=Sizes(1, 1, 2), accumulation=2, no_sync=no_sync
        )
        for no_sync in (None, True)
    )
    between = (6, 7.5)  # the second forward, which begins at 6
    assert [often.memory.at(t)["gradients"] + often.memory.at(t)["reduced"] for t in between] == [10, 10]
    assert [once.memory.at(t)["gradients"] for t in between] == [20, 20]


# In closed form: bytes

P = 3 * 5 * 7 * 8 * 4


@each("world", [1, 2, 3, 5])
@each(
    ("stage", "options", "halves"),
    [  # of an all-reduce: (N − 1)/N of the model each, with a micro-batches
        (0, {}, lambda a: 2),
        (1, {}, lambda a: 2),
        (2, {}, lambda a: a + 1),
        (3, {}, lambda a: 3 * a),
        (0, {"no_sync": False}, lambda a: 2 * a),
        (2, {"no_sync": True}, lambda a: 2),
        (3, {"no_sync": True}, lambda a: 2 * a + 1),
        (3, {"reshard": False}, lambda a: 2 * a),
        (3, {"recompute": True}, lambda a: 3 * a),
        (1, {"behind_forward": True}, lambda a: 2),
    ],
)
def test_bytes_against_the_closed_forms(world, stage, options, halves):
    sharding = Sharding(stage, world, **{k: v for k, v in options.items() if k != "no_sync"})
    for pieces in (1, 2, 4):
        step = simulate_sharded(
            equal_units(8, 1, 2, P), sharding, wires(), accumulation=pieces, no_sync=options.get("no_sync")
        )
        assert sum(step.sent.values()) == pytest.approx(halves(pieces) * (world - 1) / world * 4 * P)


def test_bytes_of_hybrid_sharding():
    step = simulate_sharded(equal_units(8, 1, 2, P), Sharding(3, 4, replicas=7), wires(), accumulation=3)
    inside = 3 / 4 * 4 * P
    assert step.sent == pytest.approx(
        {"all-gather": 6 * inside, "reduce-scatter": 3 * inside, "all-reduce": 3 * 2 * 6 / 7 * P}
    )


def test_rings_are_priced_by_their_bytes_and_hops():
    prices = Wires.rings(Sharding(3, 4, replicas=3), Link(1e-3, 1e6), Link(1e-2, 1e6))
    assert prices.all_gather(8e6) == prices.reduce_scatter(8e6) == pytest.approx(3e-3 + 3 / 4 * 8)
    assert prices.all_reduce(8e6) == pytest.approx(6e-3 + 6 / 4 * 8)
    assert prices.across(2e6) == pytest.approx(4e-2 + 4 / 3 * 2)


# What holds for every step


@st.composite
def models(draw, most=6):
    """Units of whole seconds and up to 40 parameters."""
    small = st.integers(0, 8)
    return tuple(
        Unit(
            str(k),
            draw(small),
            draw(small),
            draw(st.integers(1, 40)),
            activations=draw(small),
            input=draw(small),
            scratch=draw(small),
        )
        for k in range(draw(st.integers(1, most)))
    )


linear = st.builds(
    lambda alpha, beta, across: Wires(
        *(lambda n, part=part: alpha + part * beta * n for part in (1, 1, 2)), across=lambda n: across * n
    ),
    st.sampled_from([0, 1, 3]), st.sampled_from([0, 0.125, 0.5]), st.sampled_from([0, 1]),
)  # fmt: skip
choices = st.builds(
    Sharding, st.integers(1, 3), st.integers(1, 5), replicas=st.integers(1, 3), prefetch=st.integers(0, 4),
    reshard=st.booleans(), recompute=st.booleans(), behind_forward=st.booleans(),
)  # fmt: skip
runs = st.fixed_dictionaries(
    {
        "accumulation": st.integers(1, 3),
        "no_sync": st.sampled_from([None, False, True]),
        "optimizer": st.sampled_from([0, 2]),
    }
)


@given(models(), choices, linear, runs)
def test_a_step_is_no_shorter_than_its_parts_nor_longer_than_their_sum(units, sharding, prices, run):
    step = simulate_sharded(units, sharding, prices, **run)
    passes = sum(u.forward * (1 + sharding.recompute) + u.backward for u in units)
    computation = run["accumulation"] * passes + run["optimizer"] / sharding.shards
    communication = step.timeline.busy("communication")
    assert step.timeline.busy("computation") == pytest.approx(computation)
    assert max(computation, communication) * (1 - 1e-9) <= step.duration <= (computation + communication) * (1 + 1e-9)


@given(models(), choices, linear, runs)
def test_prefetch_is_never_slower_than_none_nor_needs_less_memory(units, sharding, prices, run):
    none, some = (
        simulate_sharded(units, replace(sharding, prefetch=depth), prices, **run) for depth in (0, sharding.prefetch)
    )
    assert some.duration <= none.duration * (1 + 1e-9)
    assert some.memory.of(["gathered"]).max() >= none.memory.of(["gathered"]).max()


@given(models(), choices, linear, runs)
def test_shards_are_always_there_and_all_else_is_freed(units, sharding, prices, run):
    step = simulate_sharded(units, sharding, prices, **run)
    moments = 2 * sum(-(-u.parameters // sharding.shards) for u in units) * 4
    weights = moments / 2 if sharding.stage == 3 else sum(u.parameters for u in units) * 4
    assert step.memory.total.min() >= moments + weights
    after = step.memory.at(step.duration)
    assert (after.pop("optimizer"), after.pop("weights")) == (moments, weights)
    assert set(after.values()) == {0}


@given(models(), choices, linear)
def test_each_stage_needs_no_more_for_the_models_state_than_the_one_before(units, sharding, prices):
    """One micro-batch: with several, a stage that shards gradients keeps the summed ones beside the next ones."""
    plain = replace(sharding, replicas=1)
    peaks = [simulate_sharded(units, replace(plain, stage=s), prices).memory.of(STATE).max() for s in range(4)]
    assert peaks == sorted(peaks, reverse=True)


@given(models(), choices, linear, runs)
def test_so_many_units_are_whole_at_once(units, sharding, prices, run):
    """Gathered weights: one unit and the prefetched ones. Gradients: the unit in backward and the one in reduction."""
    step = simulate_sharded(units, replace(sharding, stage=3, reshard=True), prices, **run | {"no_sync": None})
    for content, most in (("gathered", sharding.prefetch + 1), ("gradients", 2)):
        alive = [memory for memory in step.memory.allocations if memory.content == content]
        for memory in alive:
            assert sum(other.start <= memory.start < other.end for other in alive) <= most


@given(models(), st.sampled_from([0, 0.01, 0.5]), st.integers(1, 3), st.sampled_from([None, False]))
def test_stage_0_is_the_simulated_step_of_a_bucket_for_each_unit(units, beta, pieces, no_sync):
    layers = [Layer(u.name, u.forward, u.backward, (Tensor(u.name, u.parameters),)) for u in units]
    plain = simulate_step(
        layers, hook(layers), lambda n: beta * n, accumulation=pieces, no_sync=no_sync is None, optimizer=2
    )
    step = simulate_sharded(
        units, Sharding(0, 2), Wires(*[lambda n: beta * n] * 3), accumulation=pieces, no_sync=no_sync, optimizer=2
    )
    for kind in ("computation", "communication"):
        ours, theirs = ([(s.start, s.end) for s in t.spans if s.kind == kind] for t in (step.timeline, plain))
        assert sorted(ours) == [pytest.approx(times) for times in sorted(theirs)]


# Units


MEASURED = [
    Layer("blocks.1.fc.weight", 1, 4, (Tensor("a", 5),)),
    Layer("head.weight", 1, 2, (Tensor("b", (3, 4)),)),
    Layer("blocks.10.fc.weight", 1, 8, (Tensor("c", 6),)),
    Layer("blocks.10.mlp.up.bias", 1, 16, (Tensor("d", 3),)),
    Layer("head.bias", 1, 32, (Tensor("e", 7),)),
]


def test_a_measured_layer_belongs_to_the_innermost_unit_around_it():
    names = ["blocks.1", "blocks.10", "blocks.10.mlp"]
    given = {"activations": {"root": 7}, "inputs": {"blocks.10": 9}, "scratch": {"root": 3}, "frozen": {"blocks.1": 6}}
    assert units_of(MEASURED, names, **given) == (
        Unit("root", 2, 34, 19, activations=7, scratch=3, stays_gathered=True),
        Unit("blocks.1", 1, 4, 5 + 6, frozen=6),
        Unit("blocks.10", 1, 8, 6, input=9),
        Unit("blocks.10.mlp", 1, 16, 3),
    )


UNITS = equal_units(2, 1, 1, 2)


@each(
    ("call", "message"),
    [
        (lambda: Unit("a", -1, 0, 1), "forward of a must be"),
        (lambda: Unit("a", 0, 0, 1.5), "parameters of a must be"),
        (lambda: Unit("a", 0, 0, 1, frozen=2), "frozen of a must be"),
        (lambda: equal_units(3, 1, 1, 4), "parameters must be a multiple of 3"),
        (lambda: units_of(MEASURED, ["blocks"], activations={"c": 1}), "activations must be one of the modules"),
        (lambda: units_of(MEASURED, ["blocks"], frozen={"c": 1}), "frozen must be one of the modules"),
        (lambda: units_of(MEASURED, ["block"]), "units must be one of the modules of the layers: root, got 'block'"),
        (lambda: Sizes(gradient=-1), "gradient must be"),
        (lambda: Sharding(4, 1), "stage must be an integer from 0 to 3"),
        (lambda: Sharding(3, 0), "shards must be"),
        (lambda: Sharding(3, 1, prefetch=-1), "prefetch must be"),
        (lambda: Sharding(0, 2, replicas=2), "replicas must be 1 in stage 0"),
        (lambda: simulate_sharded([], TIGHT, wires()), "units must be a sequence"),
        (lambda: simulate_sharded(UNITS, 3, wires()), "sharding must be a Sharding"),
        (lambda: simulate_sharded(UNITS, TIGHT, lambda n: 1), "wires must be Wires"),
        (lambda: simulate_sharded(UNITS, TIGHT, wires(gather=-1)), r"all_gather\(4\) must be"),
        (lambda: simulate_sharded(UNITS, TIGHT, wires(), accumulation=0), "accumulation must be"),
        (lambda: simulate_sharded(UNITS, TIGHT, wires(), optimizer=-1), "optimizer must be"),
        (lambda: simulate_sharded(UNITS, TIGHT, wires(), sizes=4), "sizes must be Sizes"),
        (lambda: tight().memory.at(-1), "time must be a moment"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()
