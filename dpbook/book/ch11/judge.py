"""Checks of exercise 11: a training loop, bytes on the wire, ranks and their GPUs, a skipped update, a resumed run."""

import math
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch11 import loops
from dpbook.book.ch11.restarts import BROKEN, FINITE, trains_on, updates
from dpbook.classroom import (
    Answer,
    Numbers,
    Wrong,
    call,
    expect,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    value,
    where_apart,
)
from dpbook.collectives import bandwidth_lower_bound
from dpbook.core import plural
from dpbook.ranks import start
from dpbook.replicas import MLP

Array = NDArray[np.float64]

PROCESSES = 3
FIRST_PORT, PORTS = 20_000, 40_000  # ports of 127.0.0.1, one of which the ranks of an answer use
PROGRAM_SECONDS = 60.0
"""Time limit for one process to import torch and train, or three to train, on a busy machine."""
BOUND = 1e-10
LOSS_BOUND = 1e-5  # losses may be summed in float32, to which torch converts a Python number
MIN_EXAMPLES = 12  # fewer examples might be shuffled alike in two epochs by chance
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")  # names of the model's parameters

# 11.1: from a script to ranks


@dataclass(frozen=True)
class Loop:
    """Data and settings of a training loop, of a model of two linear layers with tanh between them."""

    weights: list[list[Array]]  # of each rank, four arrays in torch's order and shapes
    x: Array  # (examples, inputs)
    y: Array  # (examples, 1)
    epochs: int
    batch: int  # examples per micro-batch
    accumulation: int  # micro-batches per step
    rate: float = 0.1

    @classmethod
    def draw(cls, rng: np.random.Generator, world: int, accumulation: int) -> "Loop":
        """Draw examples for at least two steps per epoch, and different initial weights for every rank."""
        inputs, hidden, batch, epochs = (int(n) for n in rng.integers([3, 4, 2, 2], [6, 8, 5, 4]))
        step = world * batch * accumulation
        examples = step * (int(rng.integers(2, 4)) + MIN_EXAMPLES // step)
        shapes = (hidden, inputs), (hidden,), (1, hidden), (1,)
        weights = [[rng.normal(size=shape) for shape in shapes] for _ in range(world)]
        return cls(
            weights, rng.normal(size=(examples, inputs)), rng.normal(size=(examples, 1)), epochs, batch, accumulation
        )

    @property
    def trial(self) -> dict[str, Any]:
        """The trial as plain data."""
        return dict(vars(self))

    @property
    def world(self) -> int:
        return len(self.weights)

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        return len(self.x) // (self.world * self.batch * self.accumulation)

    def __str__(self) -> str:
        return (
            f"{plural(self.world, 'rank')}, {len(self.x)} examples, {plural(self.epochs, 'epoch')}, "
            f"batch {self.batch}, accumulation {self.accumulation}"
        )

    def trained(self, orders: Sequence[NDArray[np.int64]]) -> tuple[list[Array], list[float]]:
        """Return the final weights and the loss of each step, of one process that reads these global batches."""
        model = MLP(self.x.shape[1], len(self.weights[0][1]))
        w1, b1, w2, b2 = self.weights[0]
        params, losses = np.concatenate([w1.T.ravel(), b1, w2.T.ravel(), b2]), []
        for rows in orders:
            losses.append(model.loss(params, self.x[rows], self.y[rows]))
            params = params - self.rate * model.gradient(params, self.x[rows], self.y[rows])
        end = model.views(params)
        return [end["W1"].T.copy(), end["b1"], end["W2"].T.copy(), end["b2"]], losses


def _in_sandbox(answer: Any, trials: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return, for each trial, the result of each rank, of ranks that are sandboxed processes of the answer."""
    port = FIRST_PORT + secrets.randbelow(PORTS)
    with ThreadPoolExecutor(PROCESSES) as pool:
        by_rank = pool.map(
            lambda rank: answer.hosted(loops.train_as_rank, trials, rank, PROCESSES, port), range(PROCESSES)
        )
        return [list(results) for results in zip(*by_rank, strict=True)]


@where_apart(lambda answer, trials: answer.hosted(loops.train_alone, trials))
def _alone(answer: Callable[..., Any], trials: Sequence[dict[str, Any]]) -> Any:
    return loops.train_alone(answer, trials)


@where_apart(_in_sandbox)
def _in_processes(answer: Callable[..., Any], trials: Sequence[dict[str, Any]]) -> Any:
    """Return, for each trial, the result of each rank."""
    ranks = [(answer, trials, rank) for rank in range(PROCESSES)]
    by_rank = start(loops.train_on_this_rank, ranks, timeout=PROGRAM_SECONDS, echo=False)
    return [list(results) for results in zip(*by_rank, strict=True)]


def _judge(loop: Loop, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Check reads first, then syncs, checkpoints, weights and losses: a cause comes before its effects."""
    steps = loop.epochs * loop.steps
    read = [np.split(_rows(loop, rank["inputs"], f"{where}, rank {r}"), steps) for r, rank in enumerate(ranks)]
    orders = [np.concatenate(parts) for parts in zip(*read, strict=True)]  # for each step the examples of all ranks
    _judge_epochs(loop, orders, where)
    for r, rank in enumerate(ranks):
        expected_syncs = f"{plural(steps, 'sync')} under torch's DDP, one per optimizer step"
        expect(rank["syncs"] == steps, expected_syncs, f"{rank['syncs']}", f"{where}, rank {r}")
    weights, losses = loop.trained(orders)
    _judge_saved(ranks, where)
    for r, rank in enumerate(ranks):
        for place, (name, right, value_) in enumerate(zip(NAMES, weights, rank["weights"], strict=True)):
            expect_close(right, value_, BOUND, f"{where}, {name} of rank {r} at the end")
            expect_equal(ranks[0]["weights"][place], value_, f"{where}, {name} of rank {r} against rank 0")
    for name, expected in zip(NAMES, weights, strict=True):
        expect_close(expected, ranks[0]["saved"][0][name], BOUND, f"{where}, {name} in the checkpoint")
    expect_close(losses, ranks[0]["logged"], LOSS_BOUND, f"{where}, losses that rank 0 returned, one per step")


def _rows(loop: Loop, inputs: Sequence[Array], where: str) -> NDArray[np.int64]:
    """Return the indices of the examples in a rank's forwards, in order."""
    sizes = sorted({len(micro) for micro in inputs})
    expect(sizes == [loop.batch], f"micro-batches of {loop.batch} examples", f"micro-batches of {sizes}", where)
    index_of = {row.tobytes(): index for index, row in enumerate(loop.x)}
    read = [index_of.get(row.tobytes(), -1) for micro in inputs for row in micro]
    expect(-1 not in read, "the examples of the data", "inputs that are none of them", where)
    share = loop.epochs * len(loop.x) // loop.world
    expected = f"{share} examples read in {loop.epochs} epochs, the rank's share"
    expect(len(read) == share, expected, f"{len(read)}", where)
    return np.array(read)


def _judge_epochs(loop: Loop, orders: Sequence[NDArray[np.int64]], where: str) -> None:
    """Check that every epoch reads every example once, in an order of its own."""
    epochs = [np.concatenate(orders[e * loop.steps : (e + 1) * loop.steps]) for e in range(loop.epochs)]
    for number, epoch in enumerate(epochs, start=1):
        times = np.bincount(epoch, minlength=len(loop.x))
        twice, never = int((times > 1).sum()), int((times == 0).sum())
        place = f"{where}, epoch {number}"
        expect(not twice, "every example once, on one rank", f"{twice} read more than once, {never} never", place)
        same = [n for n, other in enumerate(epochs[: number - 1], start=1) if np.array_equal(other, epoch)]
        expect(not same, "an order of its own", f"that of epoch {same[0] if same else 0}", place)


def _judge_saved(ranks: Sequence[dict[str, Any]], where: str) -> None:
    for r, rank in enumerate(ranks):
        right = 1 if r == 0 else 0
        calls = len(rank["saved"])
        expect(calls == right, f"{plural(right, 'call')} of save", f"{calls}", f"{where}, rank {r}")
    names = sorted(ranks[0]["saved"][0])
    expected = f"a checkpoint that the plain model loads, with {', '.join(sorted(NAMES))}"
    expect(names == sorted(NAMES), expected, f"one with {', '.join(names)}", where)


def alone(answer: Answer, rng: np.random.Generator) -> None:
    drawn = [Loop.draw(rng, 1, accumulation) for accumulation in (1, int(rng.integers(2, 5)))]
    ranks = call(answer, [loop.trial for loop in drawn], through=_alone, seconds=PROGRAM_SECONDS, where="one rank")
    for loop, rank in zip(drawn, ranks, strict=True):
        _judge(loop, [rank], str(loop))


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Check three processes, which train on the stand-in accelerator where this torch can have it."""
    loop = Loop.draw(rng, 1, int(rng.integers(2, 5)))  # one rank first: processes start slowly and report less
    (rank,) = call(answer, [loop.trial], through=_alone, seconds=PROGRAM_SECONDS, where="one rank")
    _judge(loop, [rank], str(loop))
    answer.renew()
    loop = replace(Loop.draw(rng, PROCESSES, int(rng.integers(2, 4))), epochs=2)
    (ranks,) = call(answer, [loop.trial], through=_in_processes, seconds=math.inf, where="three real processes")
    _judge(loop, ranks, str(loop))
    return "three processes train as one with the big batch"


# 11.2: bytes on the wire


class Wired(NamedTuple):
    """Numbers of the task: the model, the rank of the adapters, the micro-batches, and the ranks that send."""

    blocks: int = 12
    wide: int = 1024
    narrow: int = 256
    rank: int = 8
    micro: int = 16
    world: int = 4


def _wired_text(task: Wired) -> list[str]:
    wide, narrow = task.wide, task.narrow
    return [
        f"A model has {task.blocks} blocks.",
        f"= ({wide}, {narrow}) and ({narrow}, {wide}),",
        f"adapters of rank {task.rank} on",
        f"with {task.micro} micro-batches per step",
        f"each of {task.world} ranks *send*",
        f"for _ in range({task.blocks}) for i, o in (({narrow}, {wide}), ({wide}, {narrow}))",
        f"Adapted(layer, {task.rank})",
        f"torch.ones(4, {narrow},",
        f"handed_over(model(True), micro={task.micro})",
    ]


WIRED = Numbers(
    "11.2",
    Wired(),
    lambda: [
        Wired(*sizes, *rest)
        for sizes in ((6, 1024, 256), (8, 2048, 512), (10, 512, 128), (16, 768, 192), (24, 1024, 256))
        for rest in product((4, 8, 16), (4, 8, 16), (4, 8))
    ],
    _wired_text,
    lambda task: tuple(int(number) for number in answers(task).values()),
)


def answers(task: Wired) -> dict[str, float]:
    """Return the right numbers, by the questions of the task."""
    parameters = task.blocks * 2 * task.wide * task.narrow
    adapters = task.blocks * 2 * task.rank * (task.wide + task.narrow)
    return {
        "1, everything trained, in fp32": 4 * parameters,
        "2, the same under bf16 autocast": 4 * parameters,
        "3, the model converted by bfloat16()": 2 * parameters,
        f"4, adapters of rank {task.rank}": 4 * adapters,
        f"5, adapters, {task.micro} micro-batches, no_sync forgotten": 4 * adapters * task.micro,
        f"6, sent by each of {task.world} ranks": bandwidth_lower_bound(task.world, 4 * parameters),
    }


def bytes_sent(answer: Answer, rng: np.random.Generator) -> None:
    right = answers(WIRED.now)
    got = expect_items(value(answer), len(right), f"{len(right)} numbers")
    for (name, expected), number in zip(right.items(), got, strict=True):
        actual = expect_number(number, name)
        if actual != expected:
            meaning = "the bytes that a rank sends" if name.startswith("6") else "the bytes of gradients in one step"
            raise Wrong(meaning, f"{number:,}", name, why=_bytes_hint(name, actual, expected))


def _bytes_hint(name: str, actual: float, expected: float) -> str:
    """Return a hint about the mistake that explains the number; "" if none does."""
    if actual * 4 == expected and name.startswith(("1", "2")):
        return "That is the number of elements. Each has a dtype, and that has bytes."
    if name.startswith("2"):
        return "Autocast computes in bf16. Which dtype do the parameters have, whose gradients are sent?"
    if name.startswith("5"):
        return "How often does a backward outside no_sync() send, and how much each time?"
    return ""


# 11.3: ranks and their GPUs

PLACE = "(the rank, the world size, the number for torch.device, the number in nvidia-smi)"


def places(answer: Answer, rng: np.random.Generator) -> None:
    for count in (1, 2, 3, 5):
        # No node has as many GPUs as another, they are not its first ones, and not all are listed in ascending order.
        sizes = rng.permutation([8, 4, 2, 3] if count == 1 else [8, 4, 2, 3, 1])[:count]
        nodes = [rng.choice(np.arange(1, 10), size, replace=False).tolist() for size in sizes]
        if all(gpus == sorted(gpus) for gpus in nodes):
            nodes = [gpus[::-1] for gpus in nodes]
        world, before = sum(map(len, nodes)), 0
        for node, gpus in enumerate(nodes):
            for local, gpu in enumerate(gpus):
                for sees_all in (True, False):
                    where = f"nodes {nodes}, node {node}, local rank {local}, "
                    where += "all GPUs of the node are seen" if sees_all else "only its own GPU is seen"
                    got = call(answer, nodes, node, local, sees_all, unchanged=True, where=where)
                    expect_items(got, 4, "four integers", where)
                    expect_equal((before + local, world, local if sees_all else 0, gpu), got, f"{where}: {PLACE}")
            before += len(gpus)


# 11.4 and 11.5: all skip or none, and a resumed run

steps, skips = partial(updates, kinds=FINITE), partial(updates, kinds=["ordinary", *BROKEN])  # ordinary: none skips
through, one_stop, three_stops = (partial(trains_on, stops=stops) for stops in (0, 1, 3))
