"""Do the logs of exercise 09.2 hold the fault that they promise, and no other?"""

import numpy as np

from dpbook.book.ch09 import KINDS, draw, like_the_next, mistakes
from dpbook.book.ch09.judge import shown
from tests.cases import each

FIELDS = ("call", "source", "shape", "dtype")
SEEDS = range(40)


def plans(logs):
    return [[tuple(call[field] for field in FIELDS) for call in log] for log in logs]


@each("seed", SEEDS)
@each("kind", KINDS)
def test_one_rank_differs_from_its_position_on(kind, seed):
    case = draw(np.random.default_rng(seed), 3 + seed % 5, kind)
    rank, position, wrong_field = case.fault
    *others, own = [*(p for r, p in enumerate(plans(case.logs)) if r != rank), plans(case.logs)[rank]]
    assert wrong_field == kind
    assert all(other == others[0] for other in others)
    assert own[:position] == others[0][:position]
    assert own[position : position + 1] != others[0][position : position + 1]


@each("seed", SEEDS)
@each("kind", KINDS)
def test_what_is_wrong_can_be_seen_in_the_logs(kind, seed):
    case = draw(np.random.default_rng(seed), 3, kind)
    rank, at, _ = case.fault
    own, right = plans(case.logs)[rank], plans(case.logs)[(rank + 1) % 3]
    skipped = own == right[:at] + right[at + 1 :]
    exchanged = own == right[:at] + right[at : at + 2][::-1] + right[at + 2 :]
    fields = [f for f, a, b in zip(FIELDS, own[at], right[at], strict=True) if a != b] if at < len(own) else []
    one_field = [f for f in fields if len(fields) == 1 and own[at + 1 :] == right[at + 1 :]]
    assert ["skipped"] * skipped + ["order"] * exchanged + one_field == [kind]


@each("seed", SEEDS)
def test_without_a_fault_all_ranks_agree_but_for_the_lines(seed):
    case = draw(np.random.default_rng(seed), 5, None)
    assert case.fault is None
    assert all(plan == plans(case.logs)[0] for plan in plans(case.logs))
    assert case.logs[0] != case.logs[1]


@each("kind", KINDS)
def test_a_failure_shows_the_calls_at_which_the_rank_leaves_the_others(kind):
    case = draw(np.random.default_rng(3), 3, kind)
    rank, at, _ = case.fault
    own, other = case.logs[rank][at : at + 1], case.logs[(rank + 1) % 3][at]
    mine, theirs = shown(case).split("; the others have ")
    assert mine.startswith(
        f"from call {at} on rank {rank} has " + (f"{own[0]['call']} {own[0]['shape']}" if own else "no")
    )
    assert theirs.startswith(f"{other['call']} {other['shape']} {other['dtype']}")


def test_each_mistake_is_one_ranks():
    for logs in mistakes().values():
        alone = [plan for plan in plans(logs) if plans(logs).count(plan) == 1]
        assert len(alone) == 1


def test_a_call_that_is_skipped_last_is_seen_by_the_length_alone():
    case = draw(np.random.default_rng(0), 3, "skipped", last=True)
    rank, position, _ = case.fault
    assert position == len(case.logs[rank])


@each("seed", SEEDS)
def test_a_call_like_the_next_one_differs_in_its_shape_alone_and_is_no_exchange(seed):
    case = like_the_next(np.random.default_rng(seed), 3)
    rank, at, field = case.fault
    own, right = plans(case.logs)[rank], plans(case.logs)[(rank + 1) % 3]
    assert [f for f, a, b in zip(FIELDS, own[at], right[at], strict=True) if a != b] == [field] == ["shape"]
    assert own[at] == right[at + 1] == own[at + 1]
    assert own[:at] + own[at + 1 :] == right[:at] + right[at + 1 :]
