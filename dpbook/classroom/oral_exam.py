"""Questions for an oral exam, with numbers drawn from a seed and with answers that the library computes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbook.collectives import Link, closed_forms, count, ring, tree
from dpbook.core import check_int
from dpbook.overlap import Tensor, equal_layers, hook, naive, plan, simulate_step
from dpbook.planning import Mesh, memory_per_rank, sent_per_rank
from dpbook.replicas import Sampler, feed

Draw = np.random.Generator


@dataclass(frozen=True)
class Question:
    """A question on a chapter, the answer to it, and what to ask next."""

    chapter: str
    ask: str
    answer: str
    next: str


def questions(seed: int) -> list[Question]:
    """Return a question for each maker of `MAKERS`, from numbers of its own, so that a new maker changes no other."""
    check_int("seed", seed, 0)
    return [make(np.random.default_rng([seed, number])) for number, make in enumerate(MAKERS)]


def questions_page(seed: int) -> str:
    """Return the questions as Markdown, for the examiner."""
    parts = [
        f"# Oral questions, seed {seed}\n",
        "For the examiner. One or two of these, then the question under *Next*, take five minutes. A student may use "
        "paper and a pocket calculator. What counts is the way to the number.\n",
    ]
    for one in questions(seed):
        parts.append(f"## {one.chapter}\n\n{one.ask}\n\n*Answer.* {one.answer}\n\n*Next.* {one.next}\n")
    return "\n".join(parts)


def _pick(draw: Draw, *values: int) -> int:
    return values[int(draw.integers(len(values)))]


def _mean_of_means(draw: Draw) -> Question:
    sizes = _pick(draw, 1, 2, 3), _pick(draw, 5, 6, 9)
    means = _pick(draw, 10, 20, 30), _pick(draw, 40, 60, 70)
    right = float(np.average(means, weights=sizes))
    return Question(
        "02 · Exactness",
        f"Rank 0 has {sizes[0]} examples with a mean gradient of {means[0]}, rank 1 has {sizes[1]} with a mean of "
        f"{means[1]}. DDP averages. Which number comes out, and which is the gradient of the batch?",
        f"{sum(means) / 2:g} comes out; the gradient of the batch is {right:.4g}. DDP's average weighs ranks alike, "
        "and the batch weighs examples alike.",
        "Repair it without changing DDP. (Divide each rank's sum by the number of all examples, times the world size.)",
    )


def _padding(draw: Draw) -> Question:
    world, batch = _pick(draw, 3, 4, 6), _pick(draw, 4, 5, 8)
    examples = world * batch * _pick(draw, 5, 7, 9) + _pick(draw, 1, 2)
    fed = feed([Sampler(examples, world, rank) for rank in range(world)], examples, batch=batch)
    twice = int(np.sum(fed.times_read[0] > 1))
    steps = -(-len(fed.orders[0][0]) // batch)
    return Question(
        "03 · Feeding the replicas",
        f"{examples} examples, {world} ranks, local batches of {batch}, and a sampler that pads. How many steps has "
        "an epoch, and how many examples are read twice?",
        f"{steps} steps; {twice} {'example is' if twice == 1 else 'examples are'} read twice. Each rank gets "
        f"{len(fed.orders[0][0])} examples.",
        "What happens in the last step if nothing is padded, and one rank has one batch more? (It waits in an "
        "all-reduce that no other rank joins.)",
    )


def _forgotten_division(draw: Draw) -> Question:
    world, micro, accumulation = _pick(draw, 2, 4, 8), _pick(draw, 4, 16, 32), _pick(draw, 3, 5, 6)
    return Question(
        "04 · Bigger batches",
        f"{world} ranks, micro-batches of {micro}, {accumulation} micro-batches per update, each a mean loss. Nobody "
        f"divides by {accumulation}. How large is the effective batch, and how long is the gradient?",
        f"The batch has {world * micro * accumulation} examples, and the gradient is {accumulation} times as long.",
        "With which optimizer does the loss curve hide it, and why? (Adam divides the gradient by its own size.)",
    )


def _ring_traffic(draw: Draw) -> Question:
    world, megabytes = _pick(draw, 4, 5, 8, 10), _pick(draw, 20, 40, 80, 120)
    sent = count(ring(world), size=megabytes * 1_000_000, itemsize=1)
    return Question(
        "05 · All-reduce",
        f"{world} ranks sum {megabytes} MB by a ring. How many rounds does it take, and how many bytes does each "
        "rank send?",
        f"{sent.rounds} rounds and {sent.busiest_bytes / 1e6:g} MB: {world - 1} rounds in each half, each with "
        f"1/{world} of the buffer.",
        "Which rank owns the complete chunk 0 between the halves? Show it with the contributions 1, 10, 100, …",
    )


def _tree_or_ring(draw: Draw) -> Question:
    world, kilobytes = _pick(draw, 16, 32, 64), _pick(draw, 1, 4, 2_000_000, 4_000_000)
    link = Link.gigabits(_pick(draw, 100, 200, 400), latency=_pick(draw, 5, 10) * 1e-6)
    seconds = {"ring": closed_forms.ring(world, link), "tree": closed_forms.tree(world, link)}
    took = {name: price(kilobytes * 1e3) for name, price in seconds.items()}
    rounds = {"ring": 2 * (world - 1), "tree": count(tree(world), size=world).rounds}
    first = min(took, key=lambda name: took[name])
    return Question(
        "06 · The cost of a collective",
        f"{world} ranks, a link of {link}, a buffer of {kilobytes:,} kB. Is a ring or a tree faster, and how long "
        "does the faster one take?",
        f"The {first}: {took[first] * 1e3:.4g} ms in {rounds[first]} rounds. The other takes "
        f"{max(took.values()) * 1e3:.4g} ms.",
        "At roughly which size would the answer change? Say which term of the price decides on either side.",
    )


def _exposed(draw: Draw) -> Question:
    layers, backward, call = _pick(draw, 3, 4, 5), _pick(draw, 2, 4), _pick(draw, 1, 3, 5)
    equal = equal_layers(layers, layers * backward / 2e3, layers * backward / 1e3, layers)
    steps = [simulate_step(equal, way, lambda nbytes: call / 1e3) for way in (naive(equal), hook(equal))]
    after, hidden = (round(1e3 * step.duration, 6) for step in steps)
    return Question(
        "07 · Naive and overlapped",
        f"{layers} layers; forward takes {backward / 2:g} ms for each, backward {backward} ms, the all-reduce of a "
        f"layer's gradient {call} ms. How long is the step if all-reduces start after backward, and if hooks start "
        "them?",
        f"{after:g} ms and {hidden:g} ms.",
        "Would two wires help? Would a faster GPU? (Compare the time of a call with the backward of a layer.)",
    )


def _buckets(draw: Draw) -> Question:
    sizes, cap = [int(size) for size in draw.integers(1, 9, size=6)], _pick(draw, 6, 8, 10)
    cut = plan([Tensor(str(n), size, "uint8") for n, size in enumerate(sizes)], cap, first=None)
    listed = ", ".join(str([sizes[index] for index in bucket.tensors]) for bucket in cut.buckets)
    return Question(
        "08 · Buckets",
        f"Gradients of {', '.join(map(str, sizes))} bytes, in the order of the parameters, become ready from the "
        f"last to the first. The cap is {cap} bytes for every bucket. Which buckets does DDP make?",
        f"{listed}. A bucket is closed as soon as it has {cap} bytes or more.",
        "In which case is the order not the reverse one? (DDP rebuilds its buckets after the first step, in the "
        "order in which gradients became ready.)",
    )


def _groups(draw: Draw) -> Question:
    sizes = {"dp": _pick(draw, 2, 4), "pp": _pick(draw, 2, 3), "tp": _pick(draw, 2, 4)}
    mesh = Mesh(sizes)
    rank = int(draw.integers(mesh.world))
    peers = {name: next(group for group in mesh.groups(name).tolist() if rank in group) for name in sizes}
    return Question(
        "09, 13 · Groups",
        f"A mesh of dp {sizes['dp']}, pp {sizes['pp']}, tp {sizes['tp']}, the last varying fastest. With which ranks "
        f"does rank {rank} average gradients, and with which does it share a layer?",
        f"Gradients: {peers['dp']}. A layer (tp): {peers['tp']}.",
        "Which of the two groups belongs inside a node, and why?",
    )


def _memory(draw: Draw) -> Question:
    billions, world = _pick(draw, 3, 8, 13, 30), _pick(draw, 8, 16, 32)
    gigabytes = [memory_per_rank(billions * 10**9, world, stage).total / 1e9 for stage in (0, 1, 3)]
    return Question(
        "13 · The scaling wall",
        f"A model of {billions} billion parameters in mixed precision with Adam, 16 bytes for each. How many GB does "
        f"a rank of {world} keep without sharding, with ZeRO-1 and with ZeRO-3, activations aside?",
        f"{gigabytes[0]:.4g}, {gigabytes[1]:.4g} and {gigabytes[2]:.4g} GB.",
        "Does it fit into 80 GB, and what is not in this number? (Activations, buckets, a gathered unit, "
        "fragmentation.)",
    )


def _sharded_traffic(draw: Draw) -> Question:
    world, micro, gigabytes = _pick(draw, 4, 8, 16), _pick(draw, 2, 4), _pick(draw, 2, 8, 16)
    sent = [sent_per_rank(gigabytes * 10**9, world, stage, 1, accumulation=micro) / 1e9 for stage in (0, 3)]
    return Question(
        "14 · Shard everything",
        f"{world} ranks, {micro} micro-batches per update, {gigabytes} GB of weights and as much of gradients. How "
        "many GB does a rank send per update with DDP (and no_sync), and with FSDP that frees its weights after "
        "forward?",
        f"{sent[0]:.4g} GB and {sent[1]:.4g} GB: 2 halves, and 3 in each micro-batch.",
        "What does FSDP save if it keeps the weights until backward, and what does that cost? (One gather of three; "
        "memory.)",
    )


def _verdict(draw: Draw) -> Question:
    world = _pick(draw, 3, 4)
    gradients = [10**rank for rank in range(world)]
    total = sum(gradients)
    mistakes = {
        "the sum was not divided": float(total),
        "it was divided twice": total / world**2,
        "the last rank was left out of the sum, and the sum was divided by all": (total - gradients[-1]) / world,
        "rank 0's gradient was counted twice": (total + 1) / world,
    }
    name = list(mistakes)[int(draw.integers(len(mistakes)))]
    return Question(
        "15 · When it breaks",
        f"Rank r's gradient is 10 to the power r, on {world} ranks. The optimizer stepped with {mistakes[name]:.6g}. "
        "What happened?",
        f"{name[0].upper()}{name[1:]}; {total / world:.6g} would be right.",
        "All ranks stepped with the same number, and the loss falls. Which check of a running job would have seen it?",
    )


def _local_steps(draw: Draw) -> Question:
    compute, sync, every = _pick(draw, 20, 40, 50), _pick(draw, 60, 120, 200), _pick(draw, 4, 8, 10)
    exact, local = compute + sync, compute + sync / every
    return Question(
        "16 · Spending exactness",
        f"A step computes for {compute} ms, and a sync takes {sync} ms and hides nowhere. How much faster is local "
        f"SGD that syncs every {every} steps?",
        f"{exact / local:.3g} times: {exact} ms for a step, and {local:g} ms on average.",
        "What must be measured before one says that it is better? (The loss after the same time, with both rates "
        "tuned.)",
    )


MAKERS: tuple[Callable[[Draw], Question], ...] = (
    _mean_of_means, _padding, _forgotten_division, _ring_traffic, _tree_or_ring, _exposed,
    _buckets, _groups, _memory, _sharded_traffic, _verdict, _local_steps,
)  # fmt: skip
"""Makers of questions, in the order of the chapters. A new one is appended, so that seeds keep their numbers."""
