"""Cheapest changes of a script and what each would gain, by simulation or from measured parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from dpbook.collectives import AlphaBeta
from dpbook.core import bytes_in_words, in_binary, milliseconds
from dpbook.overlap import CAP, FIRST_CAP, MIB, Price, Tensor, plan, tensors_of
from dpbook.runs.forecast import MeasuredStep, bucket_limits, largest_good_cap, simulate_buckets, sweep_caps
from dpbook.runs.report.measured_run import MeasuredRun
from dpbook.runs.watching import BUFFERS, Call, UpdateOnRank

LEAST_GAIN = 0.02
"""Share of a step below which a gain is not worth a change."""
MOST_ADVICE = 3
RARELY = 10
"""Updates from one call to the next of a collective that is not needed in every update."""
SMALL_BYTES = 1024
"""Size of a message up to which it may be one for a log."""
HANDOVER_SECONDS = 2e-3
"""Time of loading a batch up to which a worker, which hands batches from process to process, may not help."""
MOSTLY = 0.5
"""Share of the batches that were ready when the script asked for them, from which on workers are fast enough."""
LARGE_WAIT = 0.1
"""Share of a step from which on waiting for another rank each time is more than the noise of a machine."""
REACH = 2.0
"""Factor by which a simulated message may be larger or smaller than all that were measured."""
SHARDED_OPTIMIZERS = ("ZeroRedundancyOptimizer", "ShardedOptimizer")


class Advice(NamedTuple):
    """A change of a script in words, the predicted seconds of a step that it saves, and how they were computed."""

    change: str
    gain: float
    source: str


def advise(run: MeasuredRun) -> tuple[list[Advice], list[str]]:
    """Return the changes with the largest gains, and why other gains could not be computed.

    There are at most `MOST_ADVICE` of them, each above `LEAST_GAIN` of a step.
    """
    found = [each for rule in RULES for each in rule(run)]
    advice = [each for each in found if isinstance(each, Advice) and each.gain > LEAST_GAIN * run.step]
    best = sorted(advice, key=lambda each: each.gain, reverse=True)[:MOST_ADVICE]
    return best, [each for each in found if isinstance(each, str)]


@dataclass(frozen=True)
class _Simulation:
    """The step with the script's buckets, and the exposed communication of variants of it.

    ``sizes``: the smallest and the largest message whose time was measured, in bytes. ``contention``: where the cores
    carry the messages, computation takes twice as long meanwhile, so that hiding them behind it gains nothing.
    """

    step: MeasuredStep
    price: AlphaBeta
    exposed: float
    contention: float
    sizes: tuple[int, int]

    def gain(self, step: MeasuredStep, price: Price, cap: int, first: int) -> float:
        """Return the seconds that a variant takes less; no more than is exposed in the measured step."""
        now = simulate_buckets(self.step, self.price, *bucket_limits(self.step), self.contention).duration
        return min(now - simulate_buckets(step, price, cap, first, self.contention).duration, self.exposed)

    def beyond(self, cap: int, first: int) -> str | None:
        """Return why the price of these buckets is not known; None if messages like them were measured."""
        nbytes = plan(tensors_of(self.step.layers), cap, first).nbytes
        least, most = self.sizes
        if least / REACH <= nbytes.min() and nbytes.max() <= REACH * most:
            return None
        sent = " to ".join(dict.fromkeys(map(bytes_in_words, self.sizes)))
        made = " to ".join(dict.fromkeys(map(bytes_in_words, (int(nbytes.min()), int(nbytes.max())))))
        return f"its messages would have {made}, and {sent} were measured"


def _simulation(run: MeasuredRun, price: AlphaBeta | str, *, bucketed: bool) -> _Simulation | None:
    """Return the simulation of a script, if its step and its messages were measured.

    ``bucketed``: only if its gradients travel in buckets during backward.
    """
    if run.world == 1 or not isinstance(run.simulated, MeasuredStep) or not isinstance(price, AlphaBeta):
        return None
    if bucketed and not run.model["bucketed"]:
        return None
    contention = 2.0 if run.model["device"] == "cpu" else 1.0
    nbytes = [size for size, _ in run.sums]
    sizes = (0, run.gradient_bytes) if run.link is not None or not nbytes else (min(nbytes), max(nbytes))
    return _Simulation(run.simulated, price, run.mean("exposed"), contention, sizes)


def _other_buckets(run: MeasuredRun) -> Iterator[Advice | str]:
    if now := _simulation(run, run.price, bucketed=True):
        cap = largest_good_cap(sweep_caps(now.step, now.price, now.contention))
        gain, buckets = now.gain(now.step, now.price, cap, cap), f"buckets of {in_binary(cap)}"
        if (reason := now.beyond(cap, cap)) and gain > LEAST_GAIN * run.step:
            yield f"{buckets}: {reason}"
            return
        argument = f"bucket_cap_mb={cap / MIB:g}" if run.model["wrapped"] else f"cap={cap}"
        text = f"{run.model['wrapper']}(…, {argument}): {buckets}"
        yield Advice(text, gain, "the shortest of the simulated steps with other buckets")


def _sync_once(run: MeasuredRun) -> Iterator[Advice | str]:
    now = _simulation(run, run.price_of_same_messages, bucketed=True)
    if now and now.step.accumulation > 1 and not now.step.no_sync:
        gain = now.gain(replace(now.step, no_sync=True), now.price, *bucket_limits(now.step))
        text = f"no_sync() around forward and backward of all but the last of {now.step.accumulation} micro-batches"
        yield Advice(text, gain, "the simulated step that sends the gradients once")


def _half_the_bytes(run: MeasuredRun) -> Iterator[Advice | str]:
    now = _simulation(run, run.price, bucketed=False) if run.model["wrapped"] else None
    floats = all(each["dtype"] == "float32" for each in run.model["tensors"])
    if now and floats and run.model["device"] != "cpu":
        gain = now.gain(now.step, lambda nbytes: now.price(nbytes / 2), *bucket_limits(now.step))
        text = "send gradients in bf16: register_comm_hook(None, bf16_compress_hook); it rounds what is summed"
        yield Advice(text, gain, "the simulated step with half of the bytes")


def _overlap(run: MeasuredRun) -> Iterator[Advice | str]:
    """A script that sums gradients by itself after backward could let them travel during it."""
    now = _simulation(run, run.price, bucketed=False)
    if now is None or run.averages or run.model["wrapper"] or run.model["sharded"]:
        return
    smaller = ((cap, cap) for cap in (16 * MIB >> halved for halved in range(7)))
    limits = next((each for each in ((CAP, FIRST_CAP), *smaller) if now.beyond(*each) is None), None)
    if limits is None:
        yield f"DistributedDataParallel in place of the script's all-reduce: {now.beyond(CAP, FIRST_CAP)}"
        return
    sent = simulate_buckets(now.step, now.price, *limits, now.contention).duration
    longer = sent - simulate_buckets(now.step, lambda nbytes: 0.0, *limits).duration
    argument, buckets = "", "the default buckets of DDP"
    if limits != (CAP, FIRST_CAP):
        argument = f", bucket_cap_mb={limits[0] / MIB:g}"
        buckets = "the largest buckets of DDP whose messages were measured"
    wrapper = f"DistributedDataParallel(model{argument})"
    text = f"average gradients during backward: {wrapper} in place of the script's all-reduce"
    yield Advice(text, now.exposed - longer, f"the simulated step with {buckets}")


def _load_ahead(run: MeasuredRun) -> Iterator[Advice | str]:
    """Batches that workers load ahead cost a step nothing if they load one in the time of the rest of the step."""
    stall = float(run.parts["loader"].max())
    rest = run.step - stall
    if run.workers is None or rest <= 0 or stall <= LEAST_GAIN * run.step:
        return
    if run.ready_share > MOSTLY if run.workers else stall <= HANDOVER_SECONDS * run.batches:
        return
    loading = run.step * run.workers if run.workers else stall
    needed = ceil(loading / rest)
    if needed > run.workers:
        text = f"DataLoader(…, num_workers={needed}) in place of {run.workers}, if each rank has cores for them"
        source = f"loading a step's batches takes {milliseconds(loading)}, the rest of the step {milliseconds(rest)}"
        yield Advice(text, run.step - max(rest, loading / needed), source)


def _slow_rank(run: MeasuredRun) -> Iterator[Advice | str]:
    if (slow := run.slow) is not None:
        working, others = run.beside_the_others(run.working[run.middle].mean(axis=0))
        gain = min(working - others, float(np.delete(run.parts["waiting"], slow).mean()))
        text = f"find out why rank {slow} is slow: {run.slow_in_words}"
        yield Advice(text, gain, "the others' measured waiting for it")


def _view_of_bucket(run: MeasuredRun) -> Iterator[Advice | str]:
    if run.model["bucket_view"] or run.model["own_hook"] or run.world == 1:
        return
    copies = [
        one.backward[-1, 1] - max(call.ended for call in one.calls if call.averages)
        for ranks in run.updates
        for one in ranks
        if len(one.backward) and any(call.averages for call in one.calls)
    ]
    if copies:
        nbytes = in_binary(run.gradient_bytes)
        text = f"DistributedDataParallel(…, gradient_as_bucket_view=True), which also saves {nbytes} of memory"
        yield Advice(text, float(median(copies)), "the measured time from the last sum to the end of backward")


def _shard_the_optimizer(run: MeasuredRun) -> Iterator[Advice | str]:
    """Each rank updates some of the tensors and broadcasts each, which takes half of an all-reduce."""
    now = _simulation(run, run.price, bucketed=True)
    is_sharded = {*SHARDED_OPTIMIZERS} & {*run.model["optimizers"]}
    if now and not is_sharded and run.model["device"] != "cpu":  # the cores that update also carry the broadcasts
        sizes = sorted((Tensor(**each).nbytes for each in run.model["tensors"]), reverse=True)
        shares = [0] * run.world
        for nbytes in sizes:  # as torch divides them
            shares[shares.index(min(shares))] += nbytes
        gain = run.mean("optimizer") * (1 - max(shares) / sum(sizes)) - sum(now.price(each) / 2 for each in sizes)
        text = "shard the optimizer: ZeroRedundancyOptimizer, whose ranks each update a part of the weights"
        yield Advice(text, gain, "the measured optimizer, for the largest part, and a broadcast of each tensor")


def _uneven_work(run: MeasuredRun) -> Iterator[Advice | str]:
    """In each update the ranks wait for the one that works longest; with equal work they would all take the mean."""
    if run.world > 1 and run.slow is None and run.mean("waiting") > LARGE_WAIT * run.step:
        longest = run.working.max(axis=1) - run.working.mean(axis=1)
        gain = min(float(longest[run.middle].mean()), run.mean("waiting"))
        text = "find out why another rank is late in each update (unequal batches? other processes on its cores?)"
        yield Advice(text, gain, "the measured work of the latest rank, less the mean over ranks")


def _buffers(run: MeasuredRun) -> Iterator[Advice | str]:
    """A broadcast of buffers, such as those of batch norm, before a forward."""
    seconds = [_shortest(ranks, lambda one, call: call.name == BUFFERS) for ranks in run.updates]
    if any(seconds):
        text = "DistributedDataParallel(…, broadcast_buffers=False), if ranks may keep their own buffers (batch norm)"
        gain = min(float(median(filter(None, seconds))), run.mean("exposed"))
        yield Advice(text, gain, "the measured time of the broadcast")


def _shortest(ranks: Sequence[UpdateOnRank], wanted: Callable[[UpdateOnRank, Call], bool]) -> float:
    """Return the seconds of the wanted calls of an update, each on the rank that took shortest for it."""
    of_ranks = [[call.ended - call.begun for call in one.calls if wanted(one, call)] for one in ranks]
    return float(sum(min(seconds) for seconds in zip(*of_ranks, strict=False)))


def _call_rarely(run: MeasuredRun) -> Iterator[Advice | str]:
    """Small collectives between the passes, such as that of a logged loss; gradients are someone else's then."""
    if not run.averages:
        return
    places = {call.place[:2] for ranks in run.updates for call in ranks[0].calls if call.place}
    for place in sorted(places):
        seconds = [_shortest(ranks, partial(_is_apart, place)) for ranks in run.updates]
        text = f"the collective at {Path(place[0]).name}:{place[1]} in every {RARELY}th update, if only a log needs it"
        gain = min(float(median(seconds)), run.mean("exposed")) * (1 - 1 / RARELY)
        yield Advice(text, gain, "the measured time of the call")


def _is_apart(place: tuple[str, int], one: UpdateOnRank, call: Call) -> bool:
    """Return True for a small collective that this line of the script calls by name, outside of all passes."""
    if call.place is None or call.place[:2] != place or call.name not in call.place[2] or call.nbytes > SMALL_BYTES:
        return False
    inside = np.concatenate([one.forward, one.backward, one.optimizer])
    return not ((inside[:, 0] <= call.begun) & (call.begun < inside[:, 1])).any()


RULES: tuple[Callable[[MeasuredRun], Iterator[Advice | str]], ...] = (
    _other_buckets, _sync_once, _half_the_bytes, _overlap, _load_ahead, _slow_rank, _uneven_work, _view_of_bucket,
    _shard_the_optimizer, _buffers, _call_rarely,
)  # fmt: skip
