"""A training script, written as a function of its rank, on ranks that take turns in this process.

What a script does is left in plain data: which examples each rank read, and the weights that it returned.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm, run
from dpbook.core import InvalidArgument

Array = NDArray[np.float64]
SIZE = 4
LONGEST = 9
"""Tokens of a sentence at most."""


class Sentences:
    """A linear model's examples: sentences of 1 to 9 tokens, the same for every rank."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.tokens = [rng.normal(size=(int(n), SIZE)) for n in rng.integers(1, LONGEST + 1, count)]
        self.wanted = [rng.normal(size=len(tokens)) for tokens in self.tokens]

    def gradient(self, weights: Array, examples: Sequence[int]) -> tuple[Array, int]:
        """The gradient of half the squared error, *summed* over the tokens of some sentences; the number of these."""
        total, count = np.zeros(SIZE), 0
        for each in examples:
            total += self.tokens[each].T @ (self.tokens[each] @ weights - self.wanted[each])
            count += len(self.tokens[each])
        return total, count


class Rank:
    """What a script is given. ``examples`` is how many there are, a multiple of ``world``; ``batch`` a rank's batch.

    A script trains ``size`` weights for ``epochs`` at the learning ``rate``; gradients are clipped to the norm
    ``limit``.
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

    def gradient(self, weights: Array, examples: Sequence[int]) -> tuple[Array, int]:
        """Of these examples' loss, summed over their tokens, not averaged; and the number of tokens."""
        self.read.append([int(each) for each in examples])
        return self._sentences.gradient(np.array(weights, float), self.read[-1])

    def all_reduce(self, value: Any) -> Any:
        """The sum over the ranks of a number or an array, which is left as it is."""
        mine = np.array(value, float).ravel()
        everyone = [np.empty_like(mine) for _ in range(self.world)]
        everyone[self.number] = mine
        for shift in range(1, self.world):
            to, source = (self.number + shift) % self.world, (self.number - shift) % self.world
            self._comm.sendrecv(mine, to, everyone[source], source)
        total = np.sum(everyone, axis=0)
        return total.reshape(np.shape(value)) if np.ndim(value) else float(total[0])


def run_script(script: Callable[[Rank], Any], trial: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each rank ``read``, a list of examples for each gradient, and the ``weights`` that the script returned.

    ``trial`` has ``world``, ``seed`` of the sentences, and the numbers of a `Rank`.
    """
    sentences = Sentences(trial["examples"], trial["seed"])
    made: list[dict[str, Any]] = [{}] * trial["world"]

    def program(comm: Comm, x: Array) -> None:
        rank = Rank(comm, trial, sentences)
        weights = script(rank)
        if weights is None:
            raise InvalidArgument("weights", weights, "a list of arrays: is a return missing?")
        made[rank.number] = {"read": rank.read, "weights": [np.array(each, float) for each in weights]}

    run(program, [np.empty(0)] * trial["world"])
    return made
