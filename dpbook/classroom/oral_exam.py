"""Questions for an oral exam, with numbers drawn from a seed and with answers that the library computes.

The texts are in `dpbook/data/oral_exam.toml`; a function for each draws its numbers and computes the answer.
"""

import tomllib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpbook.collectives import Link, closed_forms, count, ring, tree
from dpbook.core import DATA, check_int, plural
from dpbook.overlap import Tensor, equal_layers, hook, naive, plan, simulate_step
from dpbook.planning import Mesh, memory_per_rank, sent_per_rank
from dpbook.replicas import Sampler, feed

Draw = np.random.Generator
Numbers = dict[str, Any]


class Question(NamedTuple):
    """A question on a chapter, the answer to it, and what to ask next."""

    chapter: str
    ask: str
    answer: str
    next: str


def questions(seed: int) -> list[Question]:
    """Return a question for each maker of `MAKERS`, from numbers of its own, so that a new maker changes no other."""
    check_int("seed", seed, 0)
    texts = tomllib.loads((DATA / "oral_exam.toml").read_text(encoding="utf-8"))["question"]
    made = []
    for place, (maker, text) in enumerate(zip(MAKERS, texts, strict=True)):
        numbers = maker(np.random.default_rng([seed, place]))
        made.append(Question(**{part: words.format(**numbers) for part, words in text.items()}))
    return made


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


def _mean_of_means(draw: Draw) -> Numbers:
    sizes = _pick(draw, 1, 2, 3), _pick(draw, 5, 6, 9)
    means = _pick(draw, 10, 20, 30), _pick(draw, 40, 60, 70)
    return {"sizes": sizes, "means": means, "plain": sum(means) / 2, "right": np.average(means, weights=sizes)}


def _padding(draw: Draw) -> Numbers:
    world, batch = _pick(draw, 3, 4, 6), _pick(draw, 4, 5, 8)
    examples = world * batch * _pick(draw, 5, 7, 9) + _pick(draw, 1, 2)
    fed = feed([Sampler(examples, world, rank) for rank in range(world)], examples, batch=batch)
    twice = int(np.sum(fed.times_read[0] > 1))
    each = len(fed.orders[0][0])
    repeated = f"{plural(twice, 'example')} {'is' if twice == 1 else 'are'}"
    return {
        "examples": examples, "world": world, "batch": batch,
        "steps": -(-each // batch), "repeated": repeated, "each": each,
    }  # fmt: skip


def _forgotten_division(draw: Draw) -> Numbers:
    world, micro, accumulation = _pick(draw, 2, 4, 8), _pick(draw, 4, 16, 32), _pick(draw, 3, 5, 6)
    return {"world": world, "micro": micro, "accumulation": accumulation, "effective": world * micro * accumulation}


def _ring_traffic(draw: Draw) -> Numbers:
    world, megabytes = _pick(draw, 4, 5, 8, 10), _pick(draw, 20, 40, 80, 120)
    sent = count(ring(world), size=megabytes * 1_000_000, itemsize=1)
    return {
        "world": world, "megabytes": megabytes,
        "rounds": sent.rounds, "half": world - 1, "sent": sent.busiest_bytes / 1e6,
    }  # fmt: skip


def _tree_or_ring(draw: Draw) -> Numbers:
    world, kilobytes = _pick(draw, 16, 32, 64), _pick(draw, 1, 4, 2_000_000, 4_000_000)
    link = Link.gigabits(_pick(draw, 100, 200, 400), latency=_pick(draw, 5, 10) * 1e-6)
    seconds = {"ring": closed_forms.ring(world, link), "tree": closed_forms.tree(world, link)}
    took = {name: 1e3 * price(kilobytes * 1e3) for name, price in seconds.items()}
    rounds = {"ring": 2 * (world - 1), "tree": count(tree(world), size=world).rounds}
    first = min(took, key=lambda name: took[name])
    return {
        "world": world, "link": link, "kilobytes": kilobytes,
        "first": first, "fast": took[first], "rounds": rounds[first], "slow": max(took.values()),
    }  # fmt: skip


def _exposed(draw: Draw) -> Numbers:
    layers, backward, call = _pick(draw, 3, 4, 5), _pick(draw, 2, 4), _pick(draw, 1, 3, 5)
    equal = equal_layers(layers, layers * backward / 2e3, layers * backward / 1e3, layers)
    steps = [simulate_step(equal, way, lambda nbytes: call / 1e3) for way in (naive(equal), hook(equal))]
    after, hidden = (round(1e3 * step.duration, 6) for step in steps)
    return {
        "layers": layers, "forward": backward / 2, "backward": backward, "call": call,
        "after": after, "hidden": hidden,
    }  # fmt: skip


def _buckets(draw: Draw) -> Numbers:
    sizes, cap = [int(size) for size in draw.integers(1, 9, size=6)], _pick(draw, 6, 8, 10)
    cut = plan([Tensor(str(n), size, "uint8") for n, size in enumerate(sizes)], cap, first=None)
    buckets = ", ".join(str([sizes[index] for index in bucket.tensors]) for bucket in cut.buckets)
    return {"sizes": ", ".join(map(str, sizes)), "cap": cap, "buckets": buckets}


def _groups(draw: Draw) -> Numbers:
    sizes = {"dp": _pick(draw, 2, 4), "pp": _pick(draw, 2, 3), "tp": _pick(draw, 2, 4)}
    mesh = Mesh(sizes)
    rank = int(draw.integers(mesh.world))
    peers = {name: next(group for group in mesh.groups(name).tolist() if rank in group) for name in sizes}
    return {"sizes": sizes, "rank": rank, "peers": peers}


def _memory(draw: Draw) -> Numbers:
    billions, world = _pick(draw, 3, 8, 13, 30), _pick(draw, 8, 16, 32)
    gigabytes = [memory_per_rank(billions * 10**9, world, stage).total / 1e9 for stage in (0, 1, 3)]
    return {"billions": billions, "world": world, "gigabytes": gigabytes}


def _sharded_traffic(draw: Draw) -> Numbers:
    world, micro, gigabytes = _pick(draw, 4, 8, 16), _pick(draw, 2, 4), _pick(draw, 2, 8, 16)
    sent = [sent_per_rank(gigabytes * 10**9, world, stage, 1, accumulation=micro) / 1e9 for stage in (0, 3)]
    return {"world": world, "micro": micro, "gigabytes": gigabytes, "sent": sent}


def _verdict(draw: Draw) -> Numbers:
    world = _pick(draw, 3, 4)
    total = sum(10**rank for rank in range(world))
    mistakes = {
        "The sum was not divided": float(total),
        "It was divided twice": total / world**2,
        "The last rank was left out of the sum, and the sum was divided by all": (total - 10 ** (world - 1)) / world,
        "Rank 0's gradient was counted twice": (total + 1) / world,
    }
    mistake = list(mistakes)[int(draw.integers(len(mistakes)))]
    return {"world": world, "stepped": mistakes[mistake], "mistake": mistake, "right": total / world}


def _local_steps(draw: Draw) -> Numbers:
    compute, sync, every = _pick(draw, 20, 40, 50), _pick(draw, 60, 120, 200), _pick(draw, 4, 8, 10)
    exact, local = compute + sync, compute + sync / every
    return {
        "compute": compute, "sync": sync, "every": every,
        "speedup": exact / local, "exact": exact, "local": local,
    }  # fmt: skip


MAKERS: tuple[Callable[[Draw], Numbers], ...] = (
    _mean_of_means, _padding, _forgotten_division, _ring_traffic, _tree_or_ring, _exposed,
    _buckets, _groups, _memory, _sharded_traffic, _verdict, _local_steps,
)  # fmt: skip
"""Makers of the numbers, in the order of the texts. A new one is appended, so that seeds keep their numbers."""
