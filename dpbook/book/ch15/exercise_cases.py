"""Cases of exercise 15: recorded runs with one hidden fault each, and a training script run on ranks that take turns.

A recorded run holds what an audit would see: numbers, examples, hashes and small gradients. Its ranks train for two
epochs of plain SGD on random gradients, and the fault changes the records as it would in a real run.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm
from dpbook.collectives.programs import call_on_ranks, exchange
from dpbook.core import InvalidArgument, check_int, check_one_of

Tensors = dict[str, NDArray[np.float32]]
"""Arrays of a rank by name."""
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


class _Fault(NamedTuple):
    """Fault that ``rank`` causes, from update ``at`` on."""

    cause: str
    rank: int
    at: int

    def hits(self, cause: str, update: int, rank: int | None = None) -> bool:
        """Return True if this is the fault, and it concerns this update, and this rank if one is given."""
        begun = update == self.at if cause == "lonely_scaler" else update >= self.at
        return self.cause == cause and begun and rank in (None, self.rank)


def blind_case(seed: int, cause: str | None = None) -> BlindCase:
    """Return the case of a ``seed`` of at least 0, with this cause ("" for none; by default a random one).

    Equal arguments give equal cases. Raises `InvalidArgument`.
    """
    rng = np.random.default_rng(check_int("seed", seed, 0))
    drawn = str(rng.choice(["", *CAUSES]))
    cause = drawn if cause is None else cause
    check_one_of("cause", cause, ["", *CAUSES])
    world, per_epoch = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    at, odd = int(rng.integers(1, 2 * per_epoch + 1)), int(rng.integers(world))
    if cause == "no_sampler":
        odd = int(rng.integers(1, world))
    fault = _Fault(cause, odd, {"different_starts": 1, "no_set_epoch": per_epoch + 1}.get(cause, at))
    copied = int(rng.integers(odd)) if odd else 0
    names = sorted(rng.permutation(TENSORS)[:3].tolist(), key=TENSORS.index)
    shapes = {name: tuple(rng.integers(1, 4, 2).tolist()) for name in names}
    weights = [_drawn(rng, shapes)] * world
    if cause == "different_starts":
        weights[odd] = _drawn(rng, shapes)
    uneven = fault.at if cause == "padding" else int(rng.integers(1, 2 * per_epoch + 1))
    rate, batch = float(rng.choice([0.05, 0.1, 0.2])), int(rng.integers(3, 6))
    count = per_epoch * world * batch
    order = rng.permutation(count)
    orders = [order, order if cause == "no_set_epoch" else (order + 1 + rng.integers(count - 1)) % count]
    if cause != "no_set_epoch" and seed % 4 == 3:  # all ranks read their examples again, in another order
        orders[1] = order.reshape(per_epoch, batch, world)[:, ::-1].reshape(-1)
    ranks: list[list[Record]] = [[] for _ in range(world)]
    for number in range(1, 2 * per_epoch + 1):
        epoch, place = divmod(number - 1, per_epoch)
        examples = orders[epoch].reshape(per_epoch, batch, world)[place].T.tolist()
        if fault.hits("no_sampler", number):
            examples[odd] = examples[copied]
        counts, before = _counts(rng, world, even=number < uneven), _hashes(weights)
        rates = [rate / 10 if fault.hits("plateau", number, rank) else rate for rank in range(world)]
        local, applied = _gradients(rng, fault, number, weights, counts)
        for rank, mine in enumerate(weights):
            if not fault.hits("lonely_scaler", number, rank):
                weights[rank] = {name: mine[name] - np.float32(rates[rank]) * applied[rank][name] for name in mine}
        for rank, after in enumerate(_hashes(weights)):
            ranks[rank].append(
                {"epoch": epoch, "examples": tuple(examples[rank]), "count": counts[rank], "before": before[rank],
                 "own": local[rank], "gradient": applied[rank], "rate": rates[rank], "after": after}
            )  # fmt: skip
    verdict = (cause, odd if cause in (*OF_A_RANK, LEFT_OUT) else None, fault.at) if cause else ("", None, None)
    return BlindCase(ranks, verdict)


def _gradients(
    rng: np.random.Generator, fault: _Fault, number: int, weights: list[Tensors], counts: list[int]
) -> tuple[list[Tensors], list[Tensors]]:
    """Return each rank's own gradient in an update, and the one with which it steps."""
    shapes = {name: array.shape for name, array in weights[0].items()}
    local = [{name: drawn + 0 * mine[name] for name, drawn in _drawn(rng, shapes).items()} for mine in weights]
    if fault.hits("missing_value", number):
        local[fault.rank][rng.choice(list(shapes))].flat[0] = np.nan
    share = np.full(len(counts), 1 / len(counts)) if fault.cause == "padding" else np.array(counts) / sum(counts)
    if fault.hits(LEFT_OUT, number):
        share[fault.rank] = 0
    share *= len(counts) if fault.hits("summed_gradients", number) else 1
    share /= len(counts) if fault.hits("divided_twice", number) else 1
    mean: Tensors = {
        name: np.sum([part * mine[name] for part, mine in zip(share, local, strict=True) if part], 0, np.float32)
        for name in shapes
    }
    applied = [local[rank] if fault.hits("past_the_wrapper", number, rank) else mean for rank in range(len(counts))]
    return local, [{name: array.copy() for name, array in gradient.items()} for gradient in applied]


def _drawn(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _hashes(weights: list[Tensors]) -> list[dict[str, str]]:
    return [
        {name: blake2b(array.tobytes(), digest_size=4).hexdigest() for name, array in mine.items()} for mine in weights
    ]


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
