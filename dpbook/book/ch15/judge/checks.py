"""What the tasks of exercise 15 check: verdicts on drawn cases, what a mended script reads and steps, a check."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch15.blind_cases import LEFT_OUT, OF_A_RANK, OF_ALL, blind_case
from dpbook.book.ch15.script_runs import SIZE, Sentences, run_script
from dpbook.classroom import Answer, call, describe, expect, expect_close, expect_equal, expect_items, of_all_checks
from dpbook.core import plural

# 15.1: blind cases

HEALTHY = ""
Wanted = Callable[[int | None, int | None], bool]
EACH: tuple[Wanted, ...] = (
    lambda rank, update: rank == 0,
    lambda rank, update: rank != 0 and update != 1,
    lambda rank, update: True,
)
"""The cases of each cause, as far as it has such: what does not differ from rank 0 may be odd, and begin later."""
DRAWS = 30


_case = lru_cache(maxsize=512)(blind_case)  # a class is tried on the same cases, one submission after another


def _judge_cases(answer: Answer, rng: np.random.Generator, causes: Sequence[str]) -> str:
    drawn = [(cause, wanted) for cause in (*causes, HEALTHY) for wanted in EACH]
    for number, place in enumerate(rng.permutation(len(drawn)), 1):
        cause, wanted = drawn[place]
        seeds = [int(seed) for seed in rng.integers(2**31, size=DRAWS)]
        seed = next((each for each in seeds if wanted(*_case(each, cause).verdict[1:])), seeds[0])
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
"""A limit of the norm that nothing reaches."""
WORLDS = (3, 2, 4)
Ranks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Trial:
    """Numbers of a run; examples are a multiple of ``world``."""

    world: int
    examples: int
    batch: int
    limit: float
    seed: int
    epochs: int = 3
    rate: float = 0.25

    @classmethod
    def draw(cls, rng: np.random.Generator, world: int, limit: float = NEVER) -> "Trial":
        """The last batch of an epoch is smaller than the others."""
        return cls(world, world * 5, int(rng.choice([2, 3, 4])), limit, int(rng.integers(2**31)))

    @property
    def batches(self) -> list[int]:
        """Sizes of a rank's batches in an epoch."""
        share = self.examples // self.world
        return [min(self.batch, share - first) for first in range(0, share, self.batch)]

    @property
    def updates(self) -> int:
        return self.epochs * len(self.batches)

    def where(self, rank: int, update: int) -> str:
        return f"{self.world} ranks, rank {rank}, update {update}"


def _try(answer: Answer, tried: Trial) -> Ranks:
    """What each rank read and returned, of the form that was asked for."""
    where, given = plural(tried.world, "rank"), vars(tried)
    by_hand = f"ch15.run_script(mended, {given})"
    ranks: Ranks = call(answer, given, through=run_script, where=where, by_hand=by_hand, once=True)
    for rank, found in enumerate(ranks):
        asked = f"{tried.updates + 1} arrays: the start, and the weights after each update"
        for each in expect_items(found["weights"], tried.updates + 1, asked, f"{where}, rank {rank}"):
            expect(np.shape(each) == (SIZE,), f"weights of shape ({SIZE},)", describe(each), f"{where}, rank {rank}")
        asked = f"one call of rank.gradient for each of {tried.updates} updates"
        expect(len(found["read"]) == tried.updates, asked, plural(len(found["read"]), "call"), f"{where}, rank {rank}")
    return ranks


def _unclipped(rng: np.random.Generator) -> Iterator[Trial]:
    """Those at which all checks look but that of the norm."""
    drawing = of_all_checks(rng)
    return (Trial.draw(drawing, world) for world in WORLDS)


def replicas_agree(answer: Answer, rng: np.random.Generator) -> None:
    for tried in _unclipped(rng):
        _judge_replicas(tried, _try(answer, tried))


def _judge_replicas(tried: Trial, ranks: Ranks) -> None:
    for update in range(tried.updates + 1):
        for rank, found in enumerate(ranks):
            where = (
                tried.where(rank, update) if update else f"{tried.world} ranks, rank {rank}, before the first update"
            )
            expect_equal(ranks[0]["weights"][update], found["weights"][update], f"{where}, beside rank 0")
            same = update and np.array_equal(found["weights"][update], found["weights"][update - 1])
            expect(not same, "weights that change", "those of the update before", where)


def examples_read(answer: Answer, rng: np.random.Generator) -> None:
    for tried in _unclipped(rng):
        epochs = list(_epochs(tried, _try(answer, tried)))
        for number, (before, after) in enumerate(pairwise(epochs), 2):
            where = f"{tried.world} ranks, epoch {number}"
            expect(before != after, "another order than in the epoch before", "the same", where)


def _epochs(tried: Trial, ranks: Ranks) -> Iterator[list[int]]:
    """The order of each epoch: rank after rank."""
    number = len(tried.batches)
    for epoch in range(tried.epochs):
        where = f"{tried.world} ranks, epoch {epoch + 1}"
        of_ranks = [found["read"][epoch * number : (epoch + 1) * number] for found in ranks]
        readers: dict[int, list[int]] = {example: [] for example in range(tried.examples)}
        for rank, batches in enumerate(of_ranks):
            sizes = [len(batch) for batch in batches]
            expect(sizes == tried.batches, f"batches of {tried.batches} examples", f"{sizes}", f"{where}, rank {rank}")
            for example in chain(*batches):
                expect(example in readers, f"examples 0 to {tried.examples - 1}", f"{example}", f"{where}, rank {rank}")
                readers[example].append(rank)
        for example, who in readers.items():
            expect(len(who) == 1, "read once, by one rank", f"read by ranks {who}", f"{where}, example {example}")
        yield list(chain(*chain(*of_ranks)))


def big_batch(answer: Answer, rng: np.random.Generator) -> None:
    for tried in _unclipped(rng):
        _judge_steps(tried, _try(answer, tried))


def clipped(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        tried = Trial.draw(rng, world, limit=float(rng.uniform(0.3, 0.6)))
        _judge_steps(tried, _try(answer, tried))


def _judge_steps(tried: Trial, ranks: Ranks) -> None:
    """Each update is that of one process which reads what all ranks read."""
    _judge_replicas(tried, ranks)
    sentences = Sentences(tried.examples, tried.seed)
    for update in range(tried.updates):
        batch = list(chain(*(found["read"][update] for found in ranks)))
        for rank, found in enumerate(ranks):
            before, after = found["weights"][update : update + 2]
            total, count = sentences.gradient(before, batch)
            mean = total / count
            mean *= min(1.0, tried.limit / float(np.linalg.norm(mean)))
            where = f"{tried.where(rank, update + 1)}, the gradient that was applied"
            expect_close(
                mean, (before - after) / tried.rate, 1e-9 * (1 + np.abs(before).max()), where, axes=("weight",)
            )


# 15.3: a check of one's own

State = dict[str, NDArray[Any]]
NAMES = ("embed", "body", "head")


@dataclass(frozen=True)
class Replicas:
    """``states[rank][update]``, and the first difference: (update, tensor, rank), or None."""

    states: list[list[State]]
    first: tuple[int, str, int] | None

    @classmethod
    def alike(cls, rng: np.random.Generator, world: int) -> "Replicas":
        """All equal, with a NaN that all have, an infinity and zeros."""
        updates = int(rng.integers(3, 7))
        kind = np.float16 if rng.integers(2) else np.float32
        states = [{name: rng.normal(size=(2, 3)).astype(kind) for name in NAMES} for _ in range(updates)]
        for state in states:
            state["embed"][0, 0], state["body"][0, 0] = np.nan, np.inf
            for array in state.values():
                array[0, 1] = 0.0
        return cls([[{n: a.copy() for n, a in s.items()} for s in states] for _ in range(world)], None)

    @classmethod
    def apart(cls, rng: np.random.Generator, kinds: Sequence[int], *, heals: bool = False) -> "Replicas":
        """Ranks of equal kind have equal bits, from some update on; where it ``heals``, but for the last."""
        made = cls.alike(rng, len(kinds))
        last = len(made.states[0]) - 1
        at, first = int(rng.integers(last if heals else last + 1)), int(rng.integers(len(NAMES)))
        how = int(rng.integers(3))
        for rank, kind in enumerate(kinds):
            for update in range(at, last if heals else last + 1):
                for name in NAMES[first:] if update == at else NAMES:
                    _change(made.states[rank][update][name], kind, how)
        right = max(kinds, key=kinds.count)  # the first of those that are as frequent
        return cls(made.states, (at, NAMES[first], next(r for r, kind in enumerate(kinds) if kind != right)))

    @property
    def where(self) -> str:
        return f"{plural(len(self.states), 'rank')}, {len(self.states[0])} moments"

    @property
    def told(self) -> str:
        """What is right, with an element that shows it."""
        if self.first is None:
            return "None, since all bits are equal"
        update, tensor, rank = self.first
        mine, *arrays = [self.states[r][update][tensor] for r in (rank, *range(len(self.states)))]
        other = next(r for r, array in enumerate(arrays) if array.tobytes() != mine.tobytes())
        place = next(i for i in range(mine.size) if mine.flat[i].tobytes() != arrays[other].flat[i].tobytes())
        shown = f"element {place} is {mine.flat[place]!r}, and {arrays[other].flat[place]!r} on rank {other}"
        return f"(update, tensor, rank) {self.first}: {shown}"


def _change(array: NDArray[Any], kind: int, how: int) -> None:
    """In place: ``kind`` times the last bit of an element, two elements exchanged, or the sign of a zero."""
    row = array.reshape(-1)
    for _ in range(kind):
        if how == 0 or kind > 1:
            row[5] = np.nextafter(row[5], row.dtype.type(np.inf))
        elif how == 1:
            row[[2, 3]] = row[[3, 2]]
        else:
            row[1] = -row[1]


KINDS = ((0, 0, 1), (1, 0, 0), (0, 1), (0, 0, 0, 1, 0), (0, 0, 1, 1, 0), (1, 1, 0, 0, 0), (0, 1, 2), (2, 1, 1, 0, 1))
"""Of each rank's bits: who is odd need not be the one that differs from rank 0."""


def _cases(rng: np.random.Generator) -> list[Replicas]:
    """Some that differ, some that do not, in any order."""
    made = [Replicas.alike(rng, world) for world in (1, 2, 3, 5)]
    made += [Replicas.apart(rng, list(kinds)) for kinds in KINDS]
    made += [Replicas.apart(rng, [0, 0, 0, 1], heals=True), Replicas.apart(rng, [0, 0, 1])]
    return [made[each] for each in rng.permutation(len(made))]


def fires(answer: Answer, rng: np.random.Generator) -> str:
    cases = _cases(rng)
    for case in cases:
        got = call(answer, case.states, where=case.where)
        expect((got is None) == (case.first is None), case.told, _came(got), case.where)
    return f"{len(cases)} runs told apart"


def located(answer: Answer, rng: np.random.Generator) -> None:
    for case in _cases(rng):
        got = call(answer, case.states, unchanged=True, where=case.where)
        found = got if got is None else tuple(expect_items(got, 3, "(update, tensor, rank), or None", case.where))
        expect(found == case.first, case.told, _came(found), case.where)


def _came(got: Any) -> str:
    return "None: nothing differs" if got is None else describe(got)
