"""Do compressors keep the promised numbers, and does error feedback lose nothing?"""

from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives, replicas
from dpbook.core import InvalidArgument
from dpbook.replicas.inexact import Compressed, LowPrecision, LowRank, Sign, TopK, relative_distance
from tests.cases import each

DATA = replicas.synthetic_task(examples=120)
MODEL = replicas.MLP(16, 3)
SHAPES = {"W1": (4, 3), "b1": (3,), "W2": (3, 2)}
SIZE = 21
METHODS = [TopK(0.25), Sign(), LowRank(1), LowRank(2)]
INTEGERS = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).integers(-9, 10, (6, 4, SIZE)) * 1.0)


def descend(method, gradients):
    """The parameters (world, size) after each step of rate 1 from 0 along given gradients (steps, world, size)."""
    steps, world, size = gradients.shape
    group = replicas.RankGroup([replicas.SGD(1.0) for _ in range(world)], collectives.ring(world), SHAPES)
    now = iter(gradients)
    group.read(lambda params, parts: next(now), np.ones(group.world))
    return [step.params for step in islice(method.steps(np.zeros((world, size)), group), steps)]


@dataclass(frozen=True)
class Watched(Compressed):
    """A method that records the arguments and results of its exchange."""

    method: Compressed
    given: list = field(default_factory=list)
    results: list = field(default_factory=list)

    def exchange(self, group):
        inner = self.method.exchange(group)

        def exchange(rows, group):
            self.given.append(rows)
            self.results.append(inner(rows, group))
            return self.results[-1]

        return exchange


# Error feedback


@given(st.sampled_from(METHODS), INTEGERS)
def test_what_was_sent_and_what_is_left_are_all_gradients(method, gradients):
    watched = Watched(method)
    descend(watched, gradients)
    sent = sum(results.parts for results in watched.results)
    left = watched.given[-1] - watched.results[-1].parts
    bound = 0 if isinstance(method, TopK) else 1e-11  # integers that are only moved stay exact
    np.testing.assert_allclose(sent + left, gradients.sum(axis=0), rtol=0, atol=bound)


@given(st.sampled_from(METHODS), INTEGERS)
def test_the_average_is_that_of_the_parts(method, gradients):
    watched = Watched(method)
    descend(watched, gradients)
    for averaged, parts in watched.results:
        np.testing.assert_allclose(averaged, np.tile(parts.mean(axis=0), (4, 1)), rtol=0, atol=1e-11)


@given(INTEGERS)
def test_what_was_left_is_sent_later_to_the_last_bit(gradients):
    """A quarter of the numbers in a step: after four steps without gradients nothing is left."""
    late = np.concatenate([gradients, np.zeros((4, *gradients.shape[1:]))])
    exact, compressed, lossy = (
        descend(method, late)[-1] for method in (replicas.Exact(), TopK(0.25), TopK(0.25, feedback=False))
    )
    np.testing.assert_array_equal(compressed, exact)
    assert np.abs(lossy - exact).max() > 0


def test_without_feedback_what_is_never_largest_is_never_sent():
    steps = np.tile([3.0, 2.0, 1.0], (60, 2, 1))
    assert descend(TopK(1 / 3, feedback=False), steps)[-1].tolist() == [[-180, 0, 0]] * 2
    assert np.abs(descend(TopK(1 / 3), steps)[-1] + [180, 120, 60]).max() <= 6


def sign_of(vector):
    return np.where(vector >= 0, 1, -1) * np.abs(vector).mean() if vector.size else vector


@each("feedback", [True, False])
@each("world", [1, 2, 3, 5])
def test_in_two_phases_workers_and_owners_keep_what_they_did_not_send(world, feedback):
    """Written out: stripe c belongs to rank c, which averages all ranks' signs of it and sends the signs of that."""
    gradients = np.random.default_rng(world).standard_normal((6, world, SIZE))
    stripes = np.array_split(np.arange(SIZE), world)
    params, workers, owners = np.zeros(SIZE), np.zeros((world, SIZE)), np.zeros(SIZE)
    for rows, params_found in zip(gradients, descend(Sign(feedback=feedback, two_phase=True), gradients), strict=True):
        for stripe in stripes:
            wanted = rows[:, stripe] + workers[:, stripe]
            parts = np.array([sign_of(row) for row in wanted])
            mean = parts.mean(axis=0) + owners[stripe]
            params[stripe] -= sign_of(mean)
            if feedback:
                workers[:, stripe], owners[stripe] = wanted - parts, mean - sign_of(mean)
        np.testing.assert_allclose(params_found, np.tile(params, (world, 1)), rtol=0, atol=1e-12)
    lost = gradients.mean(axis=1).sum(axis=0) + params - workers.mean(axis=0) - owners
    assert (np.abs(lost).max() < 1e-12) == feedback


def test_in_two_phases_a_rank_with_nothing_to_own_takes_part():
    steps = np.ones((3, 30, SIZE))
    for method in (Sign(two_phase=True), TopK(1.0, two_phase=True)):
        np.testing.assert_allclose(descend(method, steps)[-1], -3)


@each(("world", "saved"), [(4, 30), (16, 26), (64, 16)])
def test_in_two_phases_one_bit_saves_bytes_for_any_number_of_ranks(world, saved):
    sent = [
        replicas.train(
            replicas.MLP(64, 32, 10, loss=replicas.cross_entropy), replicas.digits(), world, method=method, steps=1,
            global_batch=world, meters=(),
        ).sent.max()
        for method in (replicas.Exact(), Sign(two_phase=True), Sign())
    ]  # fmt: skip
    assert sent[0] / sent[1] > saved
    assert sent[1] < sent[2]


def test_without_feedback_signs_of_one_sum_cancel():
    """Gradients of 2 and −1, −1 on three ranks: their sum is 0, their signs' is not. Feedback mends that."""
    steps = np.tile([[2.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]], (60, 1, 1))
    biased, mended = (descend(Sign(feedback=feedback), steps)[-1][0] for feedback in (False, True))
    assert biased[0] == pytest.approx(60 * (2 * 1.0 - 1.5) / 3)
    assert abs(mended[0]) < 2


@each(
    "method",
    [TopK(0.25), TopK(0.25, feedback=False), Sign(), Sign(feedback=False), LowRank(1), LowRank(1, feedback=False)],
)
@each("world", [1, 3, 4, 5, 8])
def test_replicas_stay_equal_and_depart_from_the_exact_run(method, world):
    exact, run = (replicas.train(MODEL, DATA, world, method=chosen, steps=3) for chosen in (replicas.Exact(), method))
    assert run.drift == 0
    assert run.gap > 1e-4
    assert run.sent.sum() < exact.sent.sum() or world in (1, 8)


@each("world", [2, 3])
def test_momentum_before_the_exchange_is_momentum_where_nothing_is_lost(world):
    before = replicas.train(MODEL, DATA, world, method=TopK(1, momentum=0.9), steps=6)
    after = replicas.train(MODEL, DATA, world, optimizer=replicas.Momentum, steps=6)
    np.testing.assert_allclose(before.params, after.params, rtol=0, atol=1e-14)
    plain = replicas.train(MODEL, DATA, world, steps=6)
    assert np.abs(before.params - plain.params).max() > 1e-3


def test_a_velocity_is_compressed_in_place_of_the_gradient():
    """By hand: velocities (1, 1.25) and (1.5, 1.875), of which the larger number is sent, first the second one."""
    steps = np.tile([1.0, 1.25], (2, 1, 1))
    first, second = descend(TopK(0.5, momentum=0.5), steps)
    assert first.tolist() == [[0, -1.25]]
    assert second.tolist() == [[-(1 + 1.5), -1.25]]


@each(
    ("method", "text"),
    [
        (replicas.Exact(), "Exact()"),
        (LowPrecision("bf16"), "LowPrecision(wire='bf16')"),
        (TopK(0.01), "TopK(share=0.01)"),
        (Sign(feedback=False), "Sign(feedback=False)"),
        (LowRank(2, momentum=0.9), "LowRank(rank=2, momentum=0.9)"),
    ],
)
def test_a_method_is_shown_as_it_was_called(method, text):
    assert repr(method) == text


# Top-k


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=30, unique_by=abs), st.floats(0.01, 1))
def test_the_largest_are_sent(numbers, share):
    vector = np.array(numbers, np.float32)
    kept = TopK(share).decode(TopK(share).encode(vector), vector)
    largest = sorted(numbers, key=abs, reverse=True)[: int(np.ceil(share * len(numbers)))]
    assert kept.tolist() == [number if number in largest else 0 for number in numbers]
    assert kept.dtype == np.float32


@each("wrong", [np.nan, np.inf])
@each("method", [TopK(0.25), TopK(0.25, feedback=False), Sign(), LowRank(1)])
def test_a_gradient_that_is_no_number_is_seen(method, wrong):
    gradients = np.ones((2, 4, SIZE))
    gradients[0, 2, 5] = wrong
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(descend(method, gradients)[-1][0, 5])


def test_all_of_them_are_the_exact_loop():
    exact, run = (replicas.train(MODEL, DATA, 2, method=method, steps=5) for method in (replicas.Exact(), TopK(1)))
    np.testing.assert_array_equal(run.params, exact.params)
    assert replicas.train(MODEL, DATA, 5, method=TopK(1), steps=5).gap < 1e-14


# Sign


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30).map(np.array), st.floats(-100, 100))
def test_no_other_scale_has_a_smaller_error(vector, other):
    sent = Sign().decode(Sign().encode(vector), vector)
    signs = np.where(vector >= 0, 1, -1)
    error = np.sum((vector - sent) ** 2)
    assert error <= np.sum((vector - other * signs) ** 2) + 1e-9
    assert error == pytest.approx(np.sum(vector**2) - np.abs(vector).sum() ** 2 / len(vector), abs=1e-8)


def test_a_bit_of_zero_is_positive():
    vector = np.array([0.0, 2.0, -1.0])
    assert Sign().decode(Sign().encode(vector), vector).tolist() == [1, 1, -1]


# Low rank


def of_rank(rank, seed=0, world=3):
    """Rows of W1 (4, 3), b1 and W2 (3, 2) of which every matrix has on average that rank."""
    rng = np.random.default_rng(seed)
    columns = {shape: rng.standard_normal((shape[0], rank)) for shape in ((4, 3), (3, 2))}
    tensors = [
        columns[shape] @ rng.standard_normal((world, rank, shape[1]))
        if len(shape) == 2
        else rng.random((world, *shape))
        for shape in SHAPES.values()
    ]
    return np.concatenate([tensor.reshape(world, -1) for tensor in tensors], axis=1)


@each("rank", [1, 2])
@each("seed", range(5))
def test_a_matrix_of_that_rank_is_sent_whole(rank, seed):
    rows = of_rank(rank, seed)
    exact = np.tile(rows.mean(axis=0), (3, 1))
    np.testing.assert_allclose(descend(LowRank(rank), rows[None])[0], -exact, rtol=0, atol=1e-13)
    assert np.abs(descend(LowRank(1), of_rank(2, seed)[None])[0] + of_rank(2, seed).mean(axis=0)).max() > 1e-3


@each("seed", range(5))
def test_full_rank_is_exact(seed):
    """Up to the rounding of three products: the condition of these matrices is below 100, its square below 1e4."""
    gradients = np.random.default_rng(seed).standard_normal((6, 4, SIZE))
    for compressed, exact in zip(descend(LowRank(9), gradients), descend(replicas.Exact(), gradients), strict=True):
        np.testing.assert_allclose(compressed, exact, rtol=0, atol=1e-10)


def test_a_warm_start_finds_the_best_matrix_of_its_rank():
    """Eckart and Young: no matrix of rank r is closer than the r largest singular values."""
    matrix = np.random.default_rng(0).standard_normal((4, 3))
    rows = np.zeros((2, SIZE))
    rows[:, :12] = matrix.ravel()
    path = descend(LowRank(1, feedback=False), np.tile(rows, (60, 1, 1)))
    errors = [np.linalg.norm((before - after - rows)[0]) for before, after in pairwise(path)]
    best = np.sqrt((np.linalg.svd(matrix)[1][1:] ** 2).sum())
    assert errors[-1] == pytest.approx(best, rel=1e-9)
    assert errors[0] > 1.001 * best


def test_a_tensor_of_three_dimensions_is_a_matrix_of_as_many_rows():
    gradients, ends = np.random.default_rng(0).standard_normal((3, 24)), []
    for shapes in ({"c": (4, 3, 2)}, {"W": (4, 6)}):
        group = replicas.RankGroup([replicas.SGD(1.0) for _ in range(3)], collectives.ring(3), shapes)
        group.read(lambda params, parts: gradients + params, np.ones(3))
        ends.append([step.params for step in islice(LowRank(1).steps(np.zeros((3, 24)), group), 4)][-1])
    np.testing.assert_array_equal(*ends)


@each("shapes", [{}, {"b": (SIZE,)}])
def test_a_model_without_matrices_is_named(shapes):
    group = replicas.RankGroup([replicas.SGD(1.0)], collectives.ring(1), shapes)
    with pytest.raises(InvalidArgument, match=r"^model "):
        next(LowRank(1).steps(np.zeros((1, SIZE)), group))


# Bytes


@each(
    ("method", "bytes_of"),
    [
        (TopK(0.25), lambda world: [36 * (world - 1)] * world),  # 3 of 10 float64, each with 4 bytes of index
        (Sign(), lambda world: [10 * (world - 1)] * world),  # 10 bits and a float64
        (
            LowRank(1),  # two rings: over 4 + 2 and over 2 float64
            {2: [64, 64], 3: [88, 88, 80], 4: [96, 112, 96, 80], 5: [104, 112, 112, 96, 88]}.get,
        ),
    ],
)
@each("world", [2, 3, 4, 5])
def test_bytes(method, bytes_of, world):
    run = replicas.train(replicas.Linear(4, 2), (np.ones((60, 4)), np.ones((60, 2))), world, method=method, steps=2)
    assert run.sent.tolist() == [bytes_of(world)] * 2
    assert run.rounds.tolist() == [4 * (world - 1) if isinstance(method, LowRank) else world - 1] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(0), lambda: TopK(1.5), lambda: TopK("a"), lambda: LowRank(0), lambda: LowRank(1, seed=-1),
        lambda: Sign(momentum=1), lambda: Sign(feedback="no"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(make):
    with pytest.raises(InvalidArgument, match=r"^(share|rank|seed|momentum|feedback|gather) "):
        make()


# How far


def test_the_distance_is_that_of_the_means():
    start = MODEL.init(np.random.default_rng(0))
    runs = [
        replicas.train(MODEL, DATA, 2, method=method, steps=3) for method in (replicas.Exact(), LowPrecision("bf16"))
    ]
    exact, run = runs
    assert relative_distance(exact, exact, start) == 0
    assert 0 < relative_distance(run, exact, start) < 0.01
    still = replicas.train(MODEL, DATA, 2, steps=1, lr=1e-300)
    assert relative_distance(still, exact, np.tile(start, (2, 1))) == pytest.approx(1)
    with pytest.raises(InvalidArgument, match="exact"):
        relative_distance(run, still, start)
    with pytest.raises(InvalidArgument, match="size"):
        relative_distance(run, exact, start[:3])
