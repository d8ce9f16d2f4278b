"""What an audit has seen of made-up runs with one drawn fault each: numbers, examples, hashes and small gradients.

The ranks train for two epochs of plain SGD on gradients that are drawn; a fault then has the consequences that it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.core import check_int, check_one_of

Array = NDArray[np.float32]
Record = dict[str, Any]
Verdict = tuple[str, int | None, int | None]

OF_A_RANK = ("different_starts", "no_sampler", "missing_value", "past_the_wrapper", "plateau", "lonely_scaler")
OF_ALL = ("summed_gradients", "divided_twice", "padding", "no_set_epoch")
LEFT_OUT = "left_out"
CAUSES = (*OF_A_RANK, *OF_ALL, LEFT_OUT)
TENSORS = ("embed.weight", "body.weight", "body.bias", "norm.weight", "head.weight", "head.bias")


class BlindCase(NamedTuple):
    """``ranks``: of each rank a record for each update; ``verdict``: (cause, rank, update), all of it right."""

    ranks: list[list[Record]]
    verdict: Verdict


@dataclass
class _Fault:
    """What is wrong, from update ``at`` on; ``rank`` does it."""

    cause: str
    rank: int
    at: int
    other: int = 0

    def hits(self, cause: str, update: int) -> bool:
        return self.cause == cause and (update == self.at if cause == "lonely_scaler" else update >= self.at)

    @property
    def verdict(self) -> Verdict:
        if not self.cause:
            return "", None, None
        return self.cause, self.rank if self.cause in (*OF_A_RANK, LEFT_OUT) else None, self.at


@dataclass
class _Run:
    """A run in the making."""

    rng: np.random.Generator
    fault: _Fault
    world: int
    shapes: Mapping[str, tuple[int, ...]]
    weights: list[dict[str, Array]] = field(default_factory=list)

    def begin(self) -> None:
        start = self._drawn()
        self.weights = [dict(start) for _ in range(self.world)]
        if self.fault.cause == "different_starts":
            self.weights[self.fault.rank] = self._drawn()

    def _drawn(self) -> dict[str, Array]:
        return {name: self.rng.normal(size=shape).astype(np.float32) for name, shape in self.shapes.items()}

    def update(
        self, number: int, epoch: int, examples: list[list[int]], counts: list[int], rate: float
    ) -> list[Record]:
        """The records of one update, one for each rank; the weights move on."""
        own = [{name: drawn + 0 * mine[name] for name, drawn in self._drawn().items()} for mine in self.weights]
        if self.fault.hits("missing_value", number):
            own[self.fault.rank][self.rng.choice(list(self.shapes))].flat[0] = np.nan
        before = _hashes(self.weights)
        stepped, rates = self._averaged(number, own, counts), [rate] * self.world
        if self.fault.hits("plateau", number):
            rates[self.fault.rank] = rate / 10
        for rank, mine in enumerate(self.weights):
            if not (rank == self.fault.rank and self.fault.hits("lonely_scaler", number)):
                self.weights[rank] = {name: mine[name] - np.float32(rates[rank]) * stepped[rank][name] for name in mine}
        after = _hashes(self.weights)
        return [
            {"epoch": epoch, "examples": tuple(examples[rank]), "count": counts[rank], "before": before[rank],
             "own": own[rank], "gradient": stepped[rank], "rate": rates[rank], "after": after[rank]}
            for rank in range(self.world)
        ]  # fmt: skip

    def _averaged(self, number: int, own: list[dict[str, Array]], counts: list[int]) -> list[dict[str, Array]]:
        """The gradient with which each rank steps."""
        fault, share = self.fault, np.array(counts) / sum(counts)
        if fault.cause == "padding":
            share = np.full(self.world, 1 / self.world)
        if fault.hits(LEFT_OUT, number):
            share[fault.rank] = 0
        share *= self.world if fault.hits("summed_gradients", number) else 1
        share /= self.world if fault.hits("divided_twice", number) else 1
        mean: dict[str, Array] = {
            name: np.sum([part * mine[name] for part, mine in zip(share, own, strict=True) if part], 0, np.float32)
            for name in self.shapes
        }
        stepped = [{name: array.copy() for name, array in mean.items()} for _ in own]
        if fault.hits("past_the_wrapper", number):
            stepped[fault.rank] = {name: array.copy() for name, array in own[fault.rank].items()}
        return stepped


def _hashes(weights: list[dict[str, Array]]) -> list[dict[str, str]]:
    return [
        {name: blake2b(array.tobytes(), digest_size=4).hexdigest() for name, array in mine.items()} for mine in weights
    ]


def blind_case(seed: int, cause: str | None = None) -> BlindCase:
    """The case of this seed, of a drawn ``cause``, or of one that is given ("" is none): always the same one.

    Raises `InvalidArgument`.
    """
    rng = np.random.default_rng(check_int("seed", seed, 0))
    drawn = str(rng.choice(["", *CAUSES]))
    if cause is None:
        cause = drawn
    check_one_of("cause", cause, ["", *CAUSES])
    world, per_epoch = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    fault = _fault(rng, cause, world, per_epoch)
    names = sorted(rng.permutation(TENSORS)[:3].tolist(), key=TENSORS.index)
    run = _Run(rng, fault, world, {name: tuple(rng.integers(1, 4, 2).tolist()) for name in names})
    run.begin()
    uneven = fault.at if cause == "padding" else int(rng.integers(1, 2 * per_epoch + 1))
    rate, batch = float(rng.choice([0.05, 0.1, 0.2])), int(rng.integers(3, 6))
    records, orders = [], _orders(rng, per_epoch * world * batch, repeated=cause == "no_set_epoch")
    for number in range(1, 2 * per_epoch + 1):
        epoch, place = divmod(number - 1, per_epoch)
        examples = orders[epoch].reshape(per_epoch, batch, world)[place].T.tolist()
        if fault.hits("no_sampler", number):
            examples[fault.rank] = list(examples[fault.other])
        counts = _counts(rng, world, even=number < uneven)
        records.append(run.update(number, epoch, examples, counts, rate))
    return BlindCase([list(each) for each in zip(*records, strict=True)], fault.verdict)


def _fault(rng: np.random.Generator, cause: str, world: int, per_epoch: int) -> _Fault:
    at, rank = int(rng.integers(1, 2 * per_epoch + 1)), int(rng.integers(world))
    if cause == "different_starts":
        at = 1
    if cause == "no_set_epoch":
        at = per_epoch + 1
    if cause == "no_sampler":
        rank = int(rng.integers(1, world))
    return _Fault(cause, rank, at, int(rng.integers(rank)) if rank else 0)


def _orders(rng: np.random.Generator, examples: int, *, repeated: bool) -> list[NDArray[np.int64]]:
    """Of two epochs."""
    first = rng.permutation(examples)
    return [first, first if repeated else (first + 1 + rng.integers(examples - 1)) % examples]


def _counts(rng: np.random.Generator, world: int, *, even: bool) -> list[int]:
    """Tokens on each rank; one that is uneven has more than twice as many as another."""
    counts = np.full(world, int(rng.integers(20, 60)))
    if not even:
        counts = rng.permutation(np.linspace(20, 60, world).astype(int)) + rng.integers(0, 10, world)
    return [int(count) for count in counts]
