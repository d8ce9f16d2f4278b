"""What the tasks of exercise 10 check: gradients against the big batch, and messages against the course of backward."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from dpbook.book.ch10 import trials
from dpbook.book.ch10.chains import Chain
from dpbook.book.ch10.far_wires import End
from dpbook.book.ch10.wires import Wire, in_threads
from dpbook.classroom import Answer, call, expect, expect_close, expect_equal, of_all_checks, where_apart
from dpbook.core import plural
from dpbook.ranks import start

WORLDS = (1, 2, 3)
"""What an answer is given does the sums: of the world it uses no more than the number by which it divides."""
PROCESSES = 3
PROGRAM_SECONDS = 60.0
"""For three processes to train, on a machine that has other things to do."""
BOUND = 1e-10
EVERYTHING = 10**9
"""A cap that no bucket reaches."""
SLACK = 1
"""Layers by which a message may be later than the moment at which its last gradient is ready."""

Log = list[tuple[str, int]]


def _apart(answer: Any, kind: str, trial: dict[str, Any]) -> list[dict[str, Any]]:
    """As `trials.trained_in_threads`, with ranks that are processes, whose messages pass through here."""

    def rank(wire: Wire) -> dict[str, Any]:
        end = End(wire)
        states = answer.hosted(trials.states_over, kind, trial, end)
        return {"states": states, "logs": end.logs}

    return in_threads(rank, len(trial["weights"]))


@where_apart(_apart)
def _in_threads(answer: Any, kind: str, trial: dict[str, Any]) -> list[dict[str, Any]]:
    return trials.trained_in_threads(answer, kind, trial)


def _in_processes(answer: Callable[..., Any], kind: str, given: list[dict[str, Any]]) -> Any:
    """For each trial what each rank returned."""
    ranks = [(answer, kind, given)] * PROCESSES
    found = start(trials.train_on_this_rank, ranks, timeout=PROGRAM_SECONDS, echo=False)
    return [list(each) for each in zip(*found, strict=True)]


def _try(answer: Answer, kind: str, chain: Chain, where: str) -> list[dict[str, Any]]:
    """What each rank found, with ranks that are threads."""
    ranks: list[dict[str, Any]] = call(answer, kind, chain.trial, through=_in_threads, where=where, once=True)
    return ranks


def _judge_states(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """All ranks' parameters are those of the big batch after every step, and the same to the last bit."""
    for step, expected in enumerate(chain.states()):
        place = f"{where}, after step {step + 1}"
        for rank, found in enumerate(ranks):
            for parameter, values in zip(_names(chain), zip(expected, found["states"][step], strict=True), strict=True):
                expect_close(values[0], values[1], BOUND, f"{place}, rank {rank}, {parameter}")
        for rank, found in enumerate(ranks):
            expect_equal(ranks[0]["states"][step], found["states"][step], f"{place}, rank {rank} against rank 0")


def _names(chain: Chain) -> list[str]:
    every = [f"layers.{k}.{part}" for k in range(chain.layers) for part in ("weight", "bias")]
    return [name for name in every if name != f"layers.{chain.tied[1]}.weight"]


def _judge_times(latest: Sequence[int], ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Message b is sent before backward comes to the layer ``latest[b]``; none is waited for before the finish."""
    for rank, found in enumerate(ranks):
        for step, whole in enumerate(found["logs"]):
            log, place = _synced(whole), f"{where}, step {step + 1} of rank {rank}"
            _judge_waits(log, len(latest), place)
            sent = [k for k, (event, _) in enumerate(log) if event == "sent"]
            for message, (at, layer) in enumerate(zip(sent, latest, strict=True)):
                asked = f"message {message + 1} sent while backward still runs, as soon as its gradients are ready"
                expect(layer < 0 or at < log.index(("backward", layer)), asked, "it was sent later", place)


def _judge_waits(log: Log, messages: int, where: str) -> None:
    """Every message is waited for, none before the finish, and none of an earlier step once more."""
    kept = sum(event == "waited again" for event, _ in log)
    said = f"{plural(kept, 'wait')} for messages of earlier steps: are their handles kept?"
    expect(kept == 0, "waits for the messages of this step", said, where)
    waits = [k for k, (event, _) in enumerate(log) if event == "waited"]
    early = f"message {log[waits[0]][1] + 1} waited for during backward" if waits else ""
    expect(not waits or waits[0] > log.index(("finish", 0)), "no wait before finish() is called", early, where)
    expect(len(waits) == messages, f"a wait for each of {plural(messages, 'message')}", f"{len(waits)}", where)


def _judge_local(ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Nothing is sent in the micro-batches that are not synced."""
    for rank, found in enumerate(ranks):
        for step, log in enumerate(found["logs"]):
            early = sum(event == "sent" for event, _ in log[: len(log) - len(_synced(log))])
            place = f"{where}, step {step + 1} of rank {rank}"
            expect(early == 0, "no message inside no_sync()", plural(early, "message"), place)


def _synced(log: Log) -> Log:
    """What came after the micro-batches that are not synced."""
    *before, _ = (k for k, (event, _) in enumerate(log) if event == "micro")
    return log[before[-1] + 1 :] if before else log


def _latest(chain: Chain) -> list[int]:
    """For each bucket the layer that backward must not have come to when it is sent; negative for the end."""
    layers = [layer for _, layer in chain.tensors()]
    ready = [min(layers[t] for t in group) for group in chain.plan().groups]
    return [layer - 1 - SLACK for layer in accumulate(ready, min)]


# 10.1: broadcast and average


def averages(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        _judge_naive(answer, Chain.draw(rng, world), plural(world, "rank"))
    _judge_naive(answer, Chain.draw(rng, 2, unused=True), "2 ranks, a layer that no rank uses")


def _judge_naive(answer: Answer, chain: Chain, where: str) -> None:
    ranks = _try(answer, "naive", chain, where)
    _judge_states(chain, ranks, where)
    elements = sum(tensor.elements for tensor, layer in chain.tensors() if layer in chain.orders[0])
    for rank, found in enumerate(ranks):
        for step, log in enumerate(found["logs"]):
            sent = sum(size for event, size in log if event == "sent")
            fits = sent == elements or (sent == 0 and chain.world == 1)
            place = f"{where}, step {step + 1} of rank {rank}"
            expect(fits, f"{elements} elements sent, those of all gradients", f"{sent}", place)


# 10.2: hooks


def hooks(answer: Answer, rng: np.random.Generator) -> str:
    sent = 0
    for world in WORLDS[1:]:
        chain, where = Chain.draw(rng, world), plural(world, "rank")
        ranks = _try(answer, "hooked", chain, where)
        _judge_states(chain, ranks, where)
        sent = len(chain.tensors())
        for rank in ranks:
            for step, log in enumerate(rank["logs"]):
                count = sum(event == "sent" for event, _ in log)
                expect_equal(sent, count, f"{where}, messages in step {step + 1}")
                _judge_backward(log, chain, f"{where}, step {step + 1}")
    return f"{sent} messages, all on their way when backward ends"


def _judge_backward(log: Log, chain: Chain, where: str) -> None:
    """What backward has passed is sent, and nothing is waited for before the finish."""
    _judge_waits(log, len(chain.tensors()), where)
    for layer in range(chain.layers - 1 - SLACK):
        due = sum(ready > layer + SLACK for _, ready in chain.tensors())
        sent = sum(event == "sent" for event, _ in log[: log.index(("backward", layer))])
        asked = f"{due} messages sent or more, when backward comes to layer {layer + 1} of {chain.layers}"
        expect(sent >= due, asked, f"{sent} sent", where)


# 10.3: a wrapper with two mistakes


def _judge_buckets(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Every step of every rank sends the buckets in their order, and the parameters are right."""
    sizes = [bucket.elements for bucket in chain.plan().buckets]
    for rank, found in enumerate(ranks):
        for step, log in enumerate(found["logs"]):
            sent = [elements for event, elements in log if event == "sent"]
            expect_equal(sizes, sent, f"{where}, elements of the messages in step {step + 1} of rank {rank}")
    _judge_states(chain, ranks, where)


def one_bucket(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        chain = Chain.draw(rng, world, cap=EVERYTHING)
        where = f"{plural(world, 'rank')}, a cap above all gradients"
        _judge_buckets(chain, _try(answer, "buckets", chain, where), where)


def several_buckets(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        drawn = Chain.draw(rng, world)
        others = (1, drawn.layer_bytes, drawn.plan().total_bytes) if world > 1 else ()
        for cap in (drawn.cap, *others):
            chain = replace(drawn, cap=cap)
            where = f"{plural(world, 'rank')}, cap {cap} bytes"
            ranks = _try(answer, "buckets", chain, where)
            _judge_buckets(chain, ranks, where)
            _judge_times(_latest(chain), ranks, where)


# 10.4: the reader's own


def big_batch(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        chain, where = Chain.draw(rng, world, cap=EVERYTHING), plural(world, "rank")
        _judge_states(chain, _try(answer, "whole", chain, where), where)


def _whole(rng: np.random.Generator) -> Iterator[tuple[str, Chain]]:
    """Trials of buckets, the same for all checks, each with what it is about."""
    drawing = of_all_checks(rng)
    for world in WORLDS[1:]:
        ranks = plural(world, "rank")
        yield f"{ranks}, several buckets", Chain.draw(drawing, world)
        yield f"{ranks}, a bucket per tensor", Chain.draw(drawing, world, cap=1)
        crossed = Chain.draw(drawing, world, layers=9, crossed=True)
        yield f"{ranks}, ranks whose gradients become ready in different orders", crossed
        yield f"{ranks}, a rank that leaves out a layer", Chain.draw(drawing, world, absent=True)


def _accumulated(rng: np.random.Generator) -> Iterator[tuple[str, Chain]]:
    """The same of accumulation."""
    drawing, micro = of_all_checks(rng), 3
    for world in WORLDS:
        yield f"{plural(world, 'rank')}, {micro} micro-batches", Chain.draw(drawing, world, micro=micro)
    chain = Chain.draw(drawing, PROCESSES, micro=micro, absent=True)
    yield f"{PROCESSES} ranks, a layer that one leaves out of the last micro-batch", chain


def _judge_whole(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """What was sent first: it says more about a mistake than the numbers that come of it."""
    _judge_local(ranks, where)
    _judge_buckets(chain, ranks, where)
    if len({*chain.orders, *chain.last}) == 1:
        _judge_times(_latest(chain), ranks, where)


def in_time(answer: Answer, rng: np.random.Generator) -> str:
    calls = 0
    for where, chain in _whole(rng):
        _judge_whole(chain, _try(answer, "whole", chain, where), where)
        calls = chain.plan().calls
    return f"{calls} buckets in order, during backward"


def accumulation(answer: Answer, rng: np.random.Generator) -> None:
    for where, chain in _accumulated(rng):
        _judge_whole(chain, _try(answer, "whole", chain, where), where)


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Everything once more: in threads first, since processes say less about a mistake and take seconds to start.

    Where ranks are apart, the threads are processes.
    """
    trials = [each for each in (*_whole(rng), *_accumulated(rng)) if each[1].world == PROCESSES]
    for where, chain in trials:
        _judge_whole(chain, _try(answer, "whole", chain, where), where)
    if answer.ranks_are_processes:
        return f"{PROCESSES} processes equal to the last bit, and to the big batch"
    given = [chain.trial for _, chain in trials]
    found = call(answer, "whole", given, through=_in_processes, seconds=math.inf, where="three real processes")
    expect(len(found) == len(trials), f"{len(trials)} results", f"{len(found)}", "three real processes")
    for (where, chain), ranks in zip(trials, found, strict=True):
        _judge_whole(chain, ranks, f"{where}, as processes")
    return f"{PROCESSES} processes equal to the last bit, and to the big batch"
