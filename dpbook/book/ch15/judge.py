"""Checks of exercise 15: verdicts on random cases, the reads and steps of a mended script, and a check of replicas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch15.exercise_cases import LEFT_OUT, OF_A_RANK, OF_ALL, SIZE, Sentences, blind_case, run_script
from dpbook.classroom import Answer, call, describe, expect, expect_close, expect_equal, expect_items, of_all_checks
from dpbook.core import plural

# 15.1: blind cases

HEALTHY = ""
Condition = Callable[[int | None, int | None], bool]
CONDITIONS: tuple[Condition, ...] = (
    lambda rank, update: rank == 0,
    lambda rank, update: rank != 0 and update != 1,
    lambda rank, update: True,
)
"""Conditions on rank and update of each cause's cases: rank 0 may be the odd one, and a fault may begin later.

A cause that has no such case gets any.
"""
DRAWS = 30

_case = lru_cache(maxsize=512)(blind_case)  # a class is tried on the same cases, one submission after another


def _judge_cases(answer: Answer, rng: np.random.Generator, causes: Sequence[str]) -> str:
    drawn = [(cause, condition) for cause in (*causes, HEALTHY) for condition in CONDITIONS]
    for number, place in enumerate(rng.permutation(len(drawn)), 1):
        cause, condition = drawn[place]
        seeds = [int(seed) for seed in rng.integers(2**31, size=DRAWS)]
        seed = next((seed for seed in seeds if condition(*_case(seed, cause).verdict[1:])), seeds[0])
        case = _case(seed, cause)
        where = f"case {number}, {len(case.ranks)} ranks, {len(case.ranks[0])} updates"
        by_hand = f"diagnose(ch15.blind_case({seed}, {cause!r}).ranks)"
        got = call(answer, case.ranks, where=where, by_hand=by_hand)
        items = tuple(expect_items(got, 3, "(cause, rank, update)", where))
        expect(items == case.verdict, f"cause, rank and update {case.verdict}", describe(items), where)
    return f"{len(drawn)} cases solved"


of_a_rank = partial(_judge_cases, causes=OF_A_RANK)
of_all = partial(_judge_cases, causes=(*OF_ALL, LEFT_OUT))

# 15.2: a script with five mistakes

NEVER = 1e9
"""A limit that no norm reaches."""
WORLDS = (3, 2, 4)
Ranks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trial:
    """Settings of a run; ``examples`` is a multiple of ``world``."""

    world: int
    examples: int
    batch: int
    limit: float
    seed: int
    epochs: int = 3
    rate: float = 0.25

    @classmethod
    def draw(cls, rng: np.random.Generator, world: int, limit: float = NEVER) -> "Trial":
        """Draw a run whose last batch of an epoch is smaller than the others."""
        return cls(world, world * 5, int(rng.choice([2, 3, 4])), limit, int(rng.integers(2**31)))

    @property
    def batches(self) -> list[int]:
        """Sizes of one rank's batches in an epoch."""
        share = self.examples // self.world
        return [min(self.batch, share - first) for first in range(0, share, self.batch)]

    @property
    def updates(self) -> int:
        return self.epochs * len(self.batches)

    def where(self, rank: int, update: int) -> str:
        moment = f"update {update}" if update else "before the first update"
        return f"{self.world} ranks, rank {rank}, {moment}"


def _run(answer: Answer, trial: Trial) -> Ranks:
    """Return what each rank read and returned, after a check of its form."""
    where, given = plural(trial.world, "rank"), vars(trial)
    by_hand = f"ch15.run_script(mended, {given})"
    ranks: Ranks = call(answer, given, through=run_script, where=where, by_hand=by_hand, once=True)
    for rank, result in enumerate(ranks):
        expected = f"{trial.updates + 1} arrays: the start, and the weights after each update"
        for array in expect_items(result["weights"], trial.updates + 1, expected, f"{where}, rank {rank}"):
            expect(np.shape(array) == (SIZE,), f"weights of shape ({SIZE},)", describe(array), f"{where}, rank {rank}")
        expected, calls = f"one call of rank.gradient for each of {trial.updates} updates", len(result["read"])
        expect(calls == trial.updates, expected, plural(calls, "call"), f"{where}, rank {rank}")
    return ranks


def _unclipped(rng: np.random.Generator) -> Iterator[Trial]:
    """Yield the runs that all checks share, except the check of the norm."""
    drawing = of_all_checks(rng)
    return (Trial.draw(drawing, world) for world in WORLDS)


def _judge_replicas(trial: Trial, ranks: Ranks) -> None:
    for update in range(trial.updates + 1):
        for rank, result in enumerate(ranks):
            where, weights = trial.where(rank, update), result["weights"]
            expect_equal(ranks[0]["weights"][update], weights[update], f"{where}, beside rank 0")
            same = update and np.array_equal(weights[update], weights[update - 1])
            expect(not same, "weights that change", "those of the update before", where)


def examples_read(answer: Answer, rng: np.random.Generator) -> None:
    for trial in _unclipped(rng):
        epochs = list(_epochs(trial, _run(answer, trial)))
        for number, order in enumerate(epochs):
            same = epochs.index(order) + 1
            where = f"{trial.world} ranks, epoch {number + 1}"
            expect(same == number + 1, "another order than in all epochs before", f"that of epoch {same}", where)


def _epochs(trial: Trial, ranks: Ranks) -> Iterator[list[int]]:
    """Yield the examples of each epoch in order, rank after rank, and check that each is read once."""
    number = len(trial.batches)
    for epoch in range(trial.epochs):
        where = f"{trial.world} ranks, epoch {epoch + 1}"
        of_ranks = [result["read"][epoch * number : (epoch + 1) * number] for result in ranks]
        readers: dict[int, list[int]] = {example: [] for example in range(trial.examples)}
        for rank, batches in enumerate(of_ranks):
            sizes = [len(batch) for batch in batches]
            expect(sizes == trial.batches, f"batches of {trial.batches} examples", f"{sizes}", f"{where}, rank {rank}")
            for example in chain(*batches):
                expect(example in readers, f"examples 0 to {trial.examples - 1}", f"{example}", f"{where}, rank {rank}")
                readers[example].append(rank)
        for example, by in readers.items():
            expect(len(by) == 1, "read once, by one rank", f"read by ranks {by}", f"{where}, example {example}")
        yield list(chain(*chain(*of_ranks)))


def clipped(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        trial = Trial.draw(rng, world, limit=float(rng.uniform(0.3, 0.6)))
        _judge_steps(trial, _run(answer, trial))


def _judge_steps(trial: Trial, ranks: Ranks) -> None:
    """Check that each update is that of one process which reads the examples of all ranks."""
    _judge_replicas(trial, ranks)
    sentences = Sentences(trial.examples, trial.seed)
    for update in range(trial.updates):
        batch = list(chain(*(result["read"][update] for result in ranks)))
        for rank, result in enumerate(ranks):
            before, after = result["weights"][update : update + 2]
            total, count = sentences.gradient(before, batch)
            mean = total / count
            mean *= min(1.0, trial.limit / float(np.linalg.norm(mean)))
            applied, bound = (before - after) / trial.rate, 1e-9 * (1 + np.abs(before).max())
            where = f"{trial.where(rank, update + 1)}, the gradient that was applied"
            expect_close(mean, applied, bound, where, axes=("weight",))


def _judge_runs(answer: Answer, rng: np.random.Generator, judge: Callable[[Trial, Ranks], None]) -> None:
    for trial in _unclipped(rng):
        judge(trial, _run(answer, trial))


replicas_agree, big_batch = partial(_judge_runs, judge=_judge_replicas), partial(_judge_runs, judge=_judge_steps)

# 15.3: a check of one's own

State = dict[str, NDArray[Any]]
NAMES = ("embed", "body", "head")


@dataclass(frozen=True)
class Replicas:
    """Weights ``states[rank][update]``, and their first difference: (update, tensor, rank), or None."""

    states: list[list[State]]
    first: tuple[int, str, int] | None

    @classmethod
    def equal(cls, rng: np.random.Generator, world: int) -> "Replicas":
        """Draw replicas with equal bits; they share a NaN, an infinity and zeros."""
        updates = int(rng.integers(3, 7))
        dtype = np.float16 if rng.integers(2) else np.float32
        states = [{name: rng.normal(size=(2, 3)).astype(dtype) for name in NAMES} for _ in range(updates)]
        for state in states:
            state["embed"][0, 0], state["body"][0, 0] = np.nan, np.inf
            for array in state.values():
                array[0, 1] = 0.0
        return cls([[{n: a.copy() for n, a in s.items()} for s in states] for _ in range(world)], None)

    @classmethod
    def differing(
        cls, rng: np.random.Generator, kinds: Sequence[int], *, heals: bool = False, nan: bool = False
    ) -> "Replicas":
        """Draw replicas of which only ranks of equal kind have equal bits, from some update on.

        If it ``heals``, all are equal again at the last update. With ``nan`` they differ first in the bits of a NaN.
        """
        replicas = cls.equal(rng, len(kinds))
        last = len(replicas.states[0]) - 1
        at, first = int(rng.integers(last if heals else last + 1)), int(rng.integers(len(NAMES)))
        change = int(rng.integers(3))
        if nan:
            first, change = NAMES.index("embed"), 3
        for rank, kind in enumerate(kinds):
            for update in range(at, last if heals else last + 1):
                for name in NAMES[first:] if update == at else NAMES:
                    _change(replicas.states[rank][update][name], kind, change)
        right = max(kinds, key=kinds.count)  # the first of equally frequent kinds
        return cls(replicas.states, (at, NAMES[first], next(r for r, kind in enumerate(kinds) if kind != right)))

    @property
    def where(self) -> str:
        return f"{plural(len(self.states), 'rank')}, {len(self.states[0])} moments"

    @property
    def expected(self) -> str:
        """The right answer, with an element that shows it."""
        if self.first is None:
            return "None, since all bits are equal"
        update, tensor, rank = self.first
        mine, *arrays = [self.states[r][update][tensor] for r in (rank, *range(len(self.states)))]
        other = next(r for r, array in enumerate(arrays) if array.tobytes() != mine.tobytes())
        place = next(i for i in range(mine.size) if mine.flat[i].tobytes() != arrays[other].flat[i].tobytes())
        here, there = (_with_bits(array.flat[place]) for array in (mine, arrays[other]))
        shown = f"element {place} is {here}, and {there} on rank {other}"
        return f"(update, tensor, rank) {self.first}: {shown}"


def _with_bits(number: Any) -> str:
    return f"{number!r} with the bytes {number.tobytes().hex()}" if np.isnan(number) else repr(number)


def _change(array: NDArray[Any], kind: int, change: int) -> None:
    """Change an array in place: ``kind`` times the last bit of an element, the order, or the sign of a zero or NaN."""
    row = array.reshape(-1)
    for _ in range(kind):
        if change == 0 or kind > 1:
            row[5] = np.nextafter(row[5], row.dtype.type(np.inf))
        elif change == 1:
            row[[2, 3]] = row[[3, 2]]
        else:
            place = 3 - change  # in the first tensor a zero or a NaN
            row[place] = -row[place]


KINDS = ((0, 0, 1), (1, 0, 0), (0, 1), (0, 0, 0, 1, 0), (0, 0, 1, 1, 0), (1, 1, 0, 0, 0), (0, 1, 2), (2, 1, 1, 0, 1))
"""Kinds of the ranks' bits. The odd rank is not always the one that differs from rank 0."""


def _cases(rng: np.random.Generator) -> list[Replicas]:
    """Draw replicas, some equal and some differing, in random order."""
    cases = [Replicas.equal(rng, world) for world in (1, 2, 3, 5)]
    cases += [Replicas.differing(rng, list(kinds)) for kinds in KINDS]
    cases += [Replicas.differing(rng, [0, 0, 0, 1], heals=True), Replicas.differing(rng, [0, 0, 1])]
    cases.append(Replicas.differing(rng, [0, 1, 0], nan=True))
    return [cases[place] for place in rng.permutation(len(cases))]


def fires(answer: Answer, rng: np.random.Generator) -> str:
    cases = _cases(rng)
    for case in cases:
        got = call(answer, case.states, where=case.where)
        expect((got is None) == (case.first is None), case.expected, _described(got), case.where)
    return f"{len(cases)} runs diagnosed"


def located(answer: Answer, rng: np.random.Generator) -> None:
    for case in _cases(rng):
        got = call(answer, case.states, unchanged=True, where=case.where)
        located = got if got is None else tuple(expect_items(got, 3, "(update, tensor, rank), or None", case.where))
        expect(located == case.first, case.expected, _described(located), case.where)


def _described(got: Any) -> str:
    return "None: nothing differs" if got is None else describe(got)
