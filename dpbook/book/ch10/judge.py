"""Checks of exercise 10: parameters against the big batch, and messages against the progress of backward."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from dpbook.book.ch10 import trials
from dpbook.book.ch10.trials import Chain
from dpbook.book.ch10.wires import Wire, WireEnd, in_threads
from dpbook.classroom import Answer, call, expect, expect_close, expect_equal, of_all_checks, where_apart
from dpbook.core import plural
from dpbook.ranks import start

WORLDS = (1, 2, 3)
"""Worlds that are tried. The arguments do the sums; an answer uses the world only as a divisor."""
PROCESSES = 3
PROGRAM_SECONDS = 60.0  # time limit for three processes to train, on a busy machine
BOUND = 1e-10
UNREACHED_CAP = 10**9  # a cap that no bucket reaches
SLACK = 1  # layers of backward by which a message may be later than its last gradient

Log = list[tuple[str, int]]


def _in_sandbox(answer: Any, kind: str, trial: dict[str, Any]) -> list[dict[str, Any]]:
    """Train like `_in_threads`, with ranks in sandboxed processes; messages pass, and the factors stay, here."""
    given = {name: value for name, value in trial.items() if name != "factors"}

    def rank(wire: Wire) -> dict[str, Any]:
        end = WireEnd(wire)
        wire.factors = trial["factors"][wire.rank]
        states = answer.hosted(trials.states_over, kind, given, end)
        return {"states": states, "logs": end.logs}

    return in_threads(rank, len(trial["weights"]))


@where_apart(_in_sandbox)
def _in_threads(answer: Any, kind: str, trial: dict[str, Any]) -> list[dict[str, Any]]:
    return in_threads(lambda wire: trials.train(answer, kind, trial, wire), len(trial["weights"]))


def _in_processes(answer: Callable[..., Any], kind: str, given: list[dict[str, Any]]) -> Any:
    """Return, for each trial, the result of each rank, of ranks that are processes."""
    ranks = [(answer, kind, given)] * PROCESSES
    by_rank = start(trials.train_on_this_rank, ranks, timeout=PROGRAM_SECONDS, echo=False)
    return [list(results) for results in zip(*by_rank, strict=True)]


def _run(answer: Answer, kind: str, chain: Chain, where: str) -> list[dict[str, Any]]:
    """Return the result of each rank, of ranks that are threads."""
    ranks: list[dict[str, Any]] = call(answer, kind, chain.trial, through=_in_threads, where=where, once=True)
    return ranks


RANKS_DIFFER = "The ranks differ. Do all start from rank 0's parameters, and is each gradient the mean over the ranks?"
RANKS_AGREE = "The ranks agree, but not with the big batch. Are their buffers rank 0's, and is each gradient the mean?"


def _judge_states(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Check that all ranks have the big batch's parameters after every step, with equal bits."""
    for step, expected in enumerate(chain.states()):
        place = f"{where}, after step {step + 1}"
        pairs = (zip(ranks[0]["states"][step], result["states"][step], strict=True) for result in ranks)
        differ = not all(np.array_equal(first, own) for of_rank in pairs for first, own in of_rank)
        why = RANKS_DIFFER if differ else RANKS_AGREE
        for rank, result in enumerate(ranks):
            for (name, right), value in zip(expected.items(), result["states"][step], strict=True):
                mistakes = {why: value} if chain.world > 1 else {}
                expect_close(right, value, BOUND, f"{place}, rank {rank}, {name}", mistakes=mistakes)
        for rank, result in enumerate(ranks if differ else ()):
            expect_equal(ranks[0]["states"][step], result["states"][step], f"{place}, rank {rank} against rank 0")


def _judge_times(latest: Sequence[int], ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Check that message b is sent before backward reaches layer ``latest[b]``, and is waited for after the finish."""
    for rank, result in enumerate(ranks):
        for step, whole in enumerate(result["logs"]):
            log, place = _synced(whole), f"{where}, step {step + 1} of rank {rank}"
            _judge_waits(log, len(latest), place)
            sent = [k for k, (event, _) in enumerate(log) if event == "sent"]
            for message, (at, layer) in enumerate(zip(sent, latest, strict=True)):
                expected = f"message {message + 1} sent while backward still runs, as soon as its gradients are ready"
                expect(layer < 0 or at < log.index(("backward", layer)), expected, "it was sent later", place)


def _judge_waits(log: Log, messages: int, where: str) -> None:
    """Check that every message is waited for, none before the finish, and none of an earlier step again."""
    stale = sum(event == "waited again" for event, _ in log)
    actual = f"{plural(stale, 'wait')} for messages of earlier steps: are their handles kept?"
    expect(stale == 0, "waits for the messages of this step", actual, where)
    waits = [k for k, (event, _) in enumerate(log) if event == "waited"]
    early = f"message {log[waits[0]][1] + 1} waited for during backward" if waits else ""
    # The answer's process says when the finish is called, so the end of backward counts as well.
    ended = max(k for k, (event, _) in enumerate(log) if event in ("backward", "finish"))
    expect(not waits or waits[0] > ended, "no wait before finish() is called", early, where)
    expect(len(waits) == messages, f"a wait for each of {plural(messages, 'message')}", f"{len(waits)}", where)


def _synced(log: Log) -> Log:
    """Return the part of a log after the micro-batches that are not synced."""
    *before, _ = (k for k, (event, _) in enumerate(log) if event == "micro")
    return log[before[-1] + 1 :] if before else log


def _latest(chain: Chain) -> list[int]:
    """Return, for each bucket, the layer that backward must not have reached when it is sent; negative for the end."""
    layers = [layer for _, layer in chain.tensors()]
    ready = [min(layers[t] for t in group) for group in chain.plan().groups]
    return [layer - 1 - SLACK for layer in accumulate(ready, min)]


# 10.1: broadcast and average


def averages(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        _judge_naive(answer, Chain.draw(rng, world), plural(world, "rank"))
    _judge_naive(answer, Chain.draw(rng, 2, unused=True), "2 ranks, a layer that no rank uses")


def _judge_naive(answer: Answer, chain: Chain, where: str) -> None:
    ranks = _run(answer, "naive", chain, where)
    _judge_states(chain, ranks, where)
    elements = sum(tensor.elements for tensor, layer in chain.tensors() if layer in chain.orders[0])
    for rank, result in enumerate(ranks):
        for step, log in enumerate(result["logs"]):
            sent = sum(size for event, size in log if event == "sent")
            fits = sent == elements or (sent == 0 and chain.world == 1)
            place = f"{where}, step {step + 1} of rank {rank}"
            expect(fits, f"{elements} elements sent, those of all gradients", f"{sent}", place)


# 10.2: hooks


def hooks(answer: Answer, rng: np.random.Generator) -> str:
    sent = 0
    for world in WORLDS[1:]:
        chain, where = Chain.draw(rng, world), plural(world, "rank")
        ranks = _run(answer, "hooked", chain, where)
        _judge_states(chain, ranks, where)
        sent = len(chain.tensors())
        for rank in ranks:
            for step, log in enumerate(rank["logs"]):
                count = sum(event == "sent" for event, _ in log)
                expect_equal(sent, count, f"{where}, messages in step {step + 1}")
        ready = sorted((layer for _, layer in chain.tensors()), reverse=True)
        _judge_times([layer - 1 - SLACK for layer in ready], ranks, where)
    return f"{sent} messages, all on their way when backward ends"


# 10.3: a wrapper with two mistakes


def _judge_buckets(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Check that every step of every rank sends the buckets in their order, and that the parameters are right."""
    sizes = [bucket.elements for bucket in chain.plan().buckets]
    for rank, result in enumerate(ranks):
        for step, log in enumerate(result["logs"]):
            sent = [elements for event, elements in log if event == "sent"]
            expect_equal(sizes, sent, f"{where}, elements of the messages in step {step + 1} of rank {rank}")
    _judge_states(chain, ranks, where)


def one_bucket(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        chain = Chain.draw(rng, world, cap=UNREACHED_CAP)
        where = f"{plural(world, 'rank')}, a cap above all gradients"
        _judge_buckets(chain, _run(answer, "buckets", chain, where), where)


def several_buckets(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        drawn = Chain.draw(rng, world)
        layer_bytes = sum(tensor.nbytes for tensor, _ in drawn.tensors()[:2])  # which most layers reach exactly
        others = (1, layer_bytes, drawn.plan().total_bytes) if world > 1 else ()
        for cap in (drawn.cap, *others):
            chain = replace(drawn, cap=cap)
            where = f"{plural(world, 'rank')}, cap {cap} bytes"
            ranks = _run(answer, "buckets", chain, where)
            _judge_buckets(chain, ranks, where)
            _judge_times(_latest(chain), ranks, where)


# 10.4: the reader's own


def big_batch(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        chain, where = Chain.draw(rng, world, cap=UNREACHED_CAP), plural(world, "rank")
        _judge_states(chain, _run(answer, "whole", chain, where), where)


def _whole(rng: np.random.Generator) -> Iterator[tuple[str, Chain]]:
    """Yield trials of buckets, the same for all checks, each with its description."""
    drawing = of_all_checks(rng)
    for world in WORLDS[1:]:
        ranks = plural(world, "rank")
        yield f"{ranks}, several buckets", Chain.draw(drawing, world)
        yield f"{ranks}, a bucket per tensor", Chain.draw(drawing, world, cap=1)
        crossed = Chain.draw(drawing, world, layers=9, crossed=True)
        yield f"{ranks}, ranks whose gradients become ready in different orders", crossed
        yield f"{ranks}, a rank that leaves out a layer", Chain.draw(drawing, world, absent=True)


def _accumulated(rng: np.random.Generator) -> Iterator[tuple[str, Chain]]:
    """Yield trials of accumulation, the same for all checks, each with its description."""
    drawing, micro = of_all_checks(rng), 3
    for world in WORLDS:
        yield f"{plural(world, 'rank')}, {micro} micro-batches", Chain.draw(drawing, world, micro=micro)
    chain = Chain.draw(drawing, PROCESSES, micro=micro, absent=True)
    yield f"{PROCESSES} ranks, a layer that one leaves out of the last micro-batch", chain


def _judge_whole(chain: Chain, ranks: Sequence[dict[str, Any]], where: str) -> None:
    """Check messages before parameters: they say more about a mistake."""
    for rank, result in enumerate(ranks):
        for step, log in enumerate(result["logs"]):
            early = sum(event == "sent" for event, _ in log[: len(log) - len(_synced(log))])
            place = f"{where}, step {step + 1} of rank {rank}"
            expect(early == 0, "no message inside no_sync()", plural(early, "message"), place)
    _judge_buckets(chain, ranks, where)
    if len({*chain.orders, *chain.last}) == 1:
        _judge_times(_latest(chain), ranks, where)


def in_time(answer: Answer, rng: np.random.Generator) -> str:
    calls = 0
    for where, chain in _whole(rng):
        _judge_whole(chain, _run(answer, "whole", chain, where), where)
        calls = chain.plan().calls
    return f"{calls} buckets in order, during backward"


def accumulation(answer: Answer, rng: np.random.Generator) -> None:
    for where, chain in _accumulated(rng):
        _judge_whole(chain, _run(answer, "whole", chain, where), where)


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Check everything again with processes; in threads first, which start faster and say more about a mistake.

    In a sandbox the threads are processes already.
    """
    cases = [case for case in (*_whole(rng), *_accumulated(rng)) if case[1].world == PROCESSES]
    for where, chain in cases:
        _judge_whole(chain, _run(answer, "whole", chain, where), where)
    if not answer.ranks_are_processes:
        given, place = [chain.trial for _, chain in cases], "three real processes"
        results = call(answer, "whole", given, through=_in_processes, seconds=math.inf, where=place)
        expect(len(results) == len(cases), f"{len(cases)} results", f"{len(results)}", place)
        for (where, chain), ranks in zip(cases, results, strict=True):
            _judge_whole(chain, ranks, f"{where}, as processes")
    return f"{PROCESSES} processes equal to the last bit, and to the big batch"
