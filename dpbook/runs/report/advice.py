"""Cheapest changes of a script and what each would gain, by simulation or from measured parts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median

import numpy as np

from dpbook.collectives import AlphaBeta
from dpbook.core import in_binary, milliseconds
from dpbook.overlap import CAP, FIRST_CAP, MIB, Price
from dpbook.runs.forecast import (
    MeasuredStep,
    bucket_limits,
    fitted_connection,
    forecast,
    largest_good_cap,
    simulate_buckets,
    sweep_caps,
)
from dpbook.runs.report.measured_run import MeasuredRun

LEAST_GAIN = 0.02
"""Share of a step below which a gain is not worth a change."""
MOST_ADVICE = 3
RARELY = 10
"""Updates from one call to the next of a collective that is not needed in every update."""
SMALL_BYTES = 2**16
"""Size of a message up to which it is no gradient."""

SHARDED_OPTIMIZERS = ("ZeroRedundancyOptimizer", "ShardedOptimizer")


@dataclass(frozen=True)
class Advice:
    """A change of a script.

    Attributes:
        change: what to change, in words.
        gain: predicted seconds by which a step gets shorter.
        source: how the gain was computed, in words.
    """

    change: str
    gain: float
    source: str


def advise(run: MeasuredRun) -> list[Advice]:
    """Return the changes with the largest gains, at most `MOST_ADVICE`, each above `LEAST_GAIN` of a step."""
    found = [advice for rule in RULES for advice in rule(run) if advice.gain > LEAST_GAIN * run.step]
    return sorted(found, key=lambda advice: advice.gain, reverse=True)[:MOST_ADVICE]


@dataclass(frozen=True)
class _Simulation:
    """The step with the script's buckets, and the exposed communication of variants of it."""

    step: MeasuredStep
    price: AlphaBeta
    exposed: float

    def gain(self, step: MeasuredStep, price: Price, cap: int, first: int) -> float:
        """Return the seconds that a variant takes less; no more than is exposed in the measured step."""
        now = simulate_buckets(self.step, self.price, *bucket_limits(self.step)).duration
        return min(now - simulate_buckets(step, price, cap, first).duration, self.exposed)


def _simulation(run: MeasuredRun) -> _Simulation | None:
    """Return the simulation of a script whose gradients travel in buckets during backward."""
    bucketed = run.world > 1 and run.model["bucketed"]
    if not bucketed or not isinstance(run.simulated, MeasuredStep) or not isinstance(run.price, AlphaBeta):
        return None
    return _Simulation(run.simulated, run.price, run.mean("exposed"))


def _other_buckets(run: MeasuredRun) -> Iterator[Advice]:
    if now := _simulation(run):
        cap = largest_good_cap(sweep_caps(now.step, now.price))
        gain = now.gain(now.step, now.price, cap, cap)
        argument = f"bucket_cap_mb={cap / MIB:g}" if run.model["wrapped"] else f"cap={cap}"
        text = f"{run.model['wrapper']}(…, {argument}): buckets of {in_binary(cap)}"
        yield Advice(text, gain, "the shortest of the simulated steps with other buckets")


def _sync_once(run: MeasuredRun) -> Iterator[Advice]:
    now = _simulation(run)
    if now and now.step.accumulation > 1 and not now.step.no_sync:
        gain = now.gain(replace(now.step, no_sync=True), now.price, *bucket_limits(now.step))
        text = f"no_sync() around forward and backward of all but the last of {now.step.accumulation} micro-batches"
        yield Advice(text, gain, "the simulated step that sends the gradients once")


def _half_the_bytes(run: MeasuredRun) -> Iterator[Advice]:
    now = _simulation(run)
    if (
        now
        and run.model["wrapped"]
        and run.model["device"] != "cpu"
        and all(each["dtype"] == "float32" for each in run.model["tensors"])
    ):
        gain = now.gain(now.step, lambda nbytes: now.price(nbytes / 2), *bucket_limits(now.step))
        text = "send gradients in bf16: register_comm_hook(None, bf16_compress_hook); it rounds what is summed"
        yield Advice(text, gain, "the simulated step with half of the bytes")


def _overlap(run: MeasuredRun) -> Iterator[Advice]:
    """A script that sums gradients by itself after backward could let them travel during it."""
    measured, price = run.simulated, run.price
    own = run.world > 1 and not run.averages and not run.model["wrapper"] and not run.model["sharded"]
    if own and isinstance(measured, MeasuredStep) and isinstance(price, AlphaBeta):
        exposed = simulate_buckets(measured, price, CAP, FIRST_CAP).exposed()
        text = "average gradients during backward: DistributedDataParallel(model) in place of the script's all-reduce"
        yield Advice(text, run.mean("exposed") - exposed, "the simulated step with the default buckets of DDP")


def _load_ahead(run: MeasuredRun) -> Iterator[Advice]:
    """Batches that workers load ahead cost a step nothing if they load one in the time of the rest of the step."""
    stall = float(run.parts["loader"].max())
    rest = run.step - stall
    if run.workers is None or rest <= 0 or stall <= LEAST_GAIN * run.step:
        return
    loading = run.step * run.workers if run.workers else stall
    needed = ceil(loading / rest)
    if needed > run.workers:
        text = f"DataLoader(…, num_workers={needed}) in place of {run.workers}, if each rank has cores for them"
        source = f"loading a step's batches takes {milliseconds(loading)}, the rest of the step {milliseconds(rest)}"
        yield Advice(text, run.step - max(rest, loading / needed), source)


def _slow_rank(run: MeasuredRun) -> Iterator[Advice]:
    if (slow := run.slow) is not None:
        working = run.working[run.middle].mean(axis=0)
        others = float(np.median(np.delete(working, slow)))
        gain = min(float(working[slow]) - others, float(np.delete(run.parts["waiting"], slow).mean()))
        text = (
            f"find out what slows rank {slow} down: it works for {milliseconds(float(working[slow]))} of a step, the "
            f"others for {milliseconds(others)}"
        )
        yield Advice(text, gain, "the others' measured waiting for it")


def _view_of_bucket(run: MeasuredRun) -> Iterator[Advice]:
    if run.model["bucket_view"] or run.world == 1:
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


def _shard_the_optimizer(run: MeasuredRun) -> Iterator[Advice]:
    now = None if {*SHARDED_OPTIMIZERS} & {*run.model["optimizers"]} else _simulation(run)
    if now and run.mean("optimizer") > LEAST_GAIN * run.step:
        here = fitted_connection(run.world, now.price)
        whole, sharded = forecast(now.step, [run.world], [here], [0, 1])
        text = "shard the optimizer: ZeroRedundancyOptimizer, whose ranks each update a part of the weights"
        yield Advice(text, (whole.as_it_is or whole.step) - sharded.step, "the simulated step of stage 1")


def _call_rarely(run: MeasuredRun) -> Iterator[Advice]:
    """Small collectives, such as that of a logged loss."""
    if run.model["sharded"] or run.world == 1:
        return
    spent: dict[tuple[str, tuple[str, int, str]], list[float]] = {}
    for ranks in run.updates:
        for calls in zip(*([c for c in one.calls if c.place and not c.averages] for one in ranks), strict=False):
            first = calls[0]
            if first.place and first.nbytes <= SMALL_BYTES and all(c.place == first.place for c in calls):
                shortest = min(call.ended - call.begun for call in calls)
                spent.setdefault((first.name, first.place), []).append(shortest)
    for (name, place), seconds in spent.items():
        per_update = sum(seconds) / len(run.updates)
        text = f"{name} at {Path(place[0]).name}:{place[1]} in every {RARELY}th update only"
        yield Advice(text, min(per_update, run.mean("exposed")) * (1 - 1 / RARELY), "the measured time of the call")


RULES: tuple[Callable[[MeasuredRun], Iterator[Advice]], ...] = (
    _other_buckets, _sync_once, _half_the_bytes, _overlap, _load_ahead, _slow_rank, _view_of_bucket,
    _shard_the_optimizer, _call_rarely,
)  # fmt: skip
