"""Cases of exercise 15: recorded runs with one hidden fault each, and a training script run on ranks that take turns.

A recorded run holds what an audit would see: numbers, examples, hashes and small gradients. Its ranks train for two
epochs of plain SGD on random gradients, and the fault changes the records as it would in a real run. The script is a
function of its rank; which examples each rank read and the weights that it returned come back as plain data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm
from dpbook.collectives.programs import call_on_ranks, exchange
from dpbook.core import InvalidArgument, check_int, check_one_of

Float32Array = NDArray[np.float32]
Record = dict[str, Any]
Verdict = tuple[str, int | None, int | None]

OF_A_RANK = ("different_starts", "no_sampler", "missing_value", "past_the_wrapper", "plateau", "lonely_scaler")
OF_ALL = ("summed_gradients", "divided_twice", "padding", "no_set_epoch")
LEFT_OUT = "left_out"
CAUSES = (*OF_A_RANK, *OF_ALL, LEFT_OUT)
TENSORS = ("embed.weight", "body.weight", "body.bias", "norm.weight", "head.weight", "head.bias")


class BlindCase(NamedTuple):
    """Records of a run: ``ranks[rank][update]``; and the right ``verdict``: (cause, rank, update)."""

    ranks: list[list[Record]]
    verdict: Verdict


@dataclass
class _Fault:
    """Fault that ``rank`` causes, from update ``at`` on."""

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
class _RunState:
    """State of a run while its records are made."""

    rng: np.random.Generator
    fault: _Fault
    world: int
    shapes: Mapping[str, tuple[int, ...]]
    weights: list[dict[str, Float32Array]] = field(init=False)

    def __post_init__(self) -> None:
        start = self._drawn()
        self.weights = [dict(start) for _ in range(self.world)]
        if self.fault.cause == "different_starts":
            self.weights[self.fault.rank] = self._drawn()

    def _drawn(self) -> dict[str, Float32Array]:
        return {name: self.rng.normal(size=shape).astype(np.float32) for name, shape in self.shapes.items()}

    def update(
        self, number: int, epoch: int, examples: list[list[int]], counts: list[int], rate: float
    ) -> list[Record]:
        """Step the weights and return one record of the update for each rank."""
        local = [{name: drawn + 0 * mine[name] for name, drawn in self._drawn().items()} for mine in self.weights]
        if self.fault.hits("missing_value", number):
            local[self.fault.rank][self.rng.choice(list(self.shapes))].flat[0] = np.nan
        before = _hashes(self.weights)
        stepped, rates = self._applied_gradients(number, local, counts), [rate] * self.world
        if self.fault.hits("plateau", number):
            rates[self.fault.rank] = rate / 10
        for rank, mine in enumerate(self.weights):
            if not (rank == self.fault.rank and self.fault.hits("lonely_scaler", number)):
                self.weights[rank] = {name: mine[name] - np.float32(rates[rank]) * stepped[rank][name] for name in mine}
        after = _hashes(self.weights)
        return [
            {"epoch": epoch, "examples": tuple(examples[rank]), "count": counts[rank], "before": before[rank],
             "own": local[rank], "gradient": stepped[rank], "rate": rates[rank], "after": after[rank]}
            for rank in range(self.world)
        ]  # fmt: skip

    def _applied_gradients(
        self, number: int, local: list[dict[str, Float32Array]], counts: list[int]
    ) -> list[dict[str, Float32Array]]:
        """Return the gradient with which each rank steps."""
        fault, share = self.fault, np.array(counts) / sum(counts)
        if fault.cause == "padding":
            share = np.full(self.world, 1 / self.world)
        if fault.hits(LEFT_OUT, number):
            share[fault.rank] = 0
        share *= self.world if fault.hits("summed_gradients", number) else 1
        share /= self.world if fault.hits("divided_twice", number) else 1
        mean: dict[str, Float32Array] = {
            name: np.sum([part * mine[name] for part, mine in zip(share, local, strict=True) if part], 0, np.float32)
            for name in self.shapes
        }
        stepped = [{name: array.copy() for name, array in mean.items()} for _ in local]
        if fault.hits("past_the_wrapper", number):
            stepped[fault.rank] = {name: array.copy() for name, array in local[fault.rank].items()}
        return stepped


def _hashes(weights: list[dict[str, Float32Array]]) -> list[dict[str, str]]:
    return [
        {name: blake2b(array.tobytes(), digest_size=4).hexdigest() for name, array in mine.items()} for mine in weights
    ]


def blind_case(seed: int, cause: str | None = None) -> BlindCase:
    """Return the case of a seed; equal arguments give equal cases.

    Args:
        seed: at least 0.
        cause: the fault, "" for none; by default a random one.

    Raises:
        InvalidArgument: ``seed`` or ``cause`` is no such value.
    """
    rng = np.random.default_rng(check_int("seed", seed, 0))
    drawn = str(rng.choice(["", *CAUSES]))
    if cause is None:
        cause = drawn
    check_one_of("cause", cause, ["", *CAUSES])
    world, per_epoch = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    fault = _fault(rng, cause, world, per_epoch)
    names = sorted(rng.permutation(TENSORS)[:3].tolist(), key=TENSORS.index)
    run = _RunState(rng, fault, world, {name: tuple(rng.integers(1, 4, 2).tolist()) for name in names})
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
    """Return the order of the examples in each of two epochs."""
    first = rng.permutation(examples)
    return [first, first if repeated else (first + 1 + rng.integers(examples - 1)) % examples]


def _counts(rng: np.random.Generator, world: int, *, even: bool) -> list[int]:
    """Return the number of tokens on each rank; of uneven counts, one is more than twice another."""
    counts = np.full(world, int(rng.integers(20, 60)))
    if not even:
        counts = rng.permutation(np.linspace(20, 60, world).astype(int)) + rng.integers(0, 10, world)
    return [int(count) for count in counts]


Float64Array = NDArray[np.float64]
SIZE = 4
LONGEST = 9
"""Most tokens of a sentence."""


class Sentences:
    """Examples of a linear model: sentences of 1 to 9 tokens, the same for every rank."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = [rng.normal(size=(int(n), SIZE)) for n in rng.integers(1, LONGEST + 1, count)]
        self.targets = [rng.normal(size=len(tokens)) for tokens in self.tokens]

    def gradient(self, weights: Float64Array, examples: Sequence[int]) -> tuple[Float64Array, int]:
        """Return the gradient of half the squared error, *summed* over the tokens of the examples, and their number."""
        total, count = np.zeros(SIZE), 0
        for example in examples:
            total += self.tokens[example].T @ (self.tokens[example] @ weights - self.targets[example])
            count += len(self.tokens[example])
        return total, count


class Rank:
    """Argument of a training script: its rank's number, its settings, the gradient and an all-reduce.

    There are ``examples`` examples, a multiple of ``world``; a rank's batch has ``batch`` of them. A script trains
    ``size`` weights for ``epochs`` at the learning ``rate``, and clips gradients to the norm ``limit``.
    """

    OFFERS = (
        "number", "world", "size", "examples", "batch", "epochs", "rate", "limit", "gradient", "all_reduce"
    )  # fmt: skip

    def __init__(self, comm: Comm, trial: Mapping[str, Any], sentences: Sentences) -> None:
        self.number, self.world, self.size = comm.rank, comm.world_size, SIZE
        self.examples, self.batch, self.epochs = trial["examples"], trial["batch"], trial["epochs"]
        self.rate, self.limit = trial["rate"], trial["limit"]
        self.read: list[list[int]] = []
        self._comm, self._sentences = comm, sentences

    def gradient(self, weights: Float64Array, examples: Sequence[int]) -> tuple[Float64Array, int]:
        """Return the gradient of these examples' loss, summed over their tokens, and the number of tokens."""
        self.read.append([int(each) for each in examples])
        return self._sentences.gradient(np.array(weights, float), self.read[-1])

    def all_reduce(self, value: Any) -> Any:
        """Return the sum of a number or an array over the ranks; the argument does not change."""
        total = np.sum(exchange(self._comm, np.array(value, float).ravel()), axis=0)
        return total.reshape(np.shape(value)) if np.ndim(value) else float(total[0])


def run_script(script: Callable[[Rank], Any], trial: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a script on ranks that take turns in this process.

    ``trial`` has ``world``, the ``seed`` of the sentences, and the numbers of a `Rank`.

    Returns, for each rank, ``read`` (a list of examples for each gradient) and the script's ``weights``.
    """
    sentences = Sentences(trial["examples"], trial["seed"])

    def on_rank(comm: Comm) -> dict[str, Any]:
        rank = Rank(comm, trial, sentences)
        weights = script(rank)
        if weights is None:
            raise InvalidArgument("weights", weights, "a list of arrays: is a return missing?")
        return {"read": rank.read, "weights": [np.array(each, float) for each in weights]}

    return call_on_ranks(on_rank, trial["world"])
