"""Verdict on a measured run: sentences, the rows of its table of results, and its largest loss of time."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import AlphaBeta
from dpbook.core import in_words, milliseconds, plural
from dpbook.runs.forecast import MeasuredStep
from dpbook.runs.report.measured_run import LONG, SLOW_IN, SMALL_SHARE, MeasuredRun

LOSSES = {
    "exposed": "exposed communication",
    "waiting": "waiting for the slowest rank",
    "loader": "waiting for the loader",
    "rest": "the rest, outside of forward, backward and optimizer",
}
"""Parts of a step in which a rank trains nothing, in words."""
UNSEEN = "no collective was seen in an update: the ranks do not communicate, or not through torch.distributed"
NO_EXAMPLES = "not measured: it is not known what an example is"


def sentences(run: MeasuredRun, alone: MeasuredRun | None, share: float | None = None) -> Iterator[str]:
    """Yield the sentences of the verdict; ``share`` is the scaling efficiency where it is known from elsewhere."""
    if run.world == 1:
        yield "One process: no communication and no waiting."
    elif not communicates(run):
        yield f"Communication was not measured: {UNSEEN}."
    else:
        exposed, waiting = run.mean("exposed"), run.mean("waiting")
        of_step = f"{exposed / run.step:.0%} of a step, {milliseconds(exposed)} of {milliseconds(run.step)}"
        if exposed < SMALL_SHARE * run.step:
            yield f"Communication costs little: exposed communication takes {of_step}."
        else:
            yield f"Communication is not hidden: {of_step}, is transfer during which nothing is computed."
        waited = f"{waiting / run.step:.0%} of a step ({milliseconds(waiting)}, the mean over ranks)"
        if run.slow is not None:
            yield f"Rank {run.slow} is slower: {run.slow_in_words}. Waiting takes {waited}."
        elif waiting < SMALL_SHARE * run.step:
            yield "No rank is slow, and hardly any time is spent waiting."
        else:
            yield f"Waiting for each other takes {waited}, though no single rank is slow."
    loader = run.mean("loader")
    if loader > SMALL_SHARE * run.step:
        yield f"Waiting for the loader takes {loader / run.step:.0%} of a step ({milliseconds(loader)})."
    if run.long_seconds > SMALL_SHARE * run.step:
        yield f"{_long(run)}. This makes the mean update {milliseconds(run.long_seconds)} longer."
    if run.world > 1 and alone is not None:
        yield _efficiency_sentence(run, alone, efficiency(run, alone) if share is None else share)


def _long(run: MeasuredRun) -> str:
    """Return the updates that take long, and which ranks take long in which part of them, in words."""

    def excess(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        more: NDArray[np.float64] = seconds[run.long].mean(axis=0) - seconds[run.middle].mean(axis=0)
        return more

    working = excess(run.working)
    rank = int(working.argmax())
    alone = run.world > 1 and working[rank] > 2 * np.delete(working, rank).max()
    late = f"rank {rank} spends" if alone else "all ranks spend"
    part = max(SLOW_IN, key=lambda name: float(excess(run.all_parts[name])[rank]))
    count, longest = int(run.long.sum()), milliseconds(float(run.seconds[run.long].mean()))
    return (
        f"{count} of {plural(len(run.updates), 'update')} {'takes' if count == 1 else 'take'} more than {LONG:g} times "
        f"the median, {longest} on average, in which {late} longer {SLOW_IN[part]}"
    )


def communicates(run: MeasuredRun) -> bool:
    """Return True if a collective or a wait was seen in an update."""
    return any(one.calls or len(one.waits) for ranks in run.updates for one in ranks)


def efficiency(run: MeasuredRun, alone: MeasuredRun) -> float | None:
    """Return the rate of the median step divided by that of as many processes as fast as ``alone``, or None."""
    if not run.inputs or not alone.inputs or run.unit != alone.unit:
        return None
    return run.inputs / run.step / (run.world * alone.inputs / alone.step / alone.world)


def _efficiency_sentence(run: MeasuredRun, alone: MeasuredRun, share: float | None) -> str:
    """Return the scaling efficiency in words, and the causes of the difference to N times one process."""
    steps = f"a step takes {milliseconds(run.step)}, with one process alone {milliseconds(alone.step)}"
    if share is None:
        return f"Efficiency was {NO_EXAMPLES}; {steps}."
    names = {"computation": "slower computing", "optimizer": "a slower update"} | LOSSES
    lost = {words: run.mean(part) - alone.mean(part) for part, words in names.items()}
    large = [
        words for words in sorted(lost, key=lost.__getitem__, reverse=True) if lost[words] > SMALL_SHARE * run.step
    ]
    causes = ", ".join(f"{words} ({milliseconds(lost[words])})" for words in large)
    difference = f"; the difference is {causes}" if causes and share <= 1 - SMALL_SHARE else ""
    return f"Efficiency is {share:.0%}: {steps}{difference}."


def rows(run: MeasuredRun, alone: MeasuredRun | str | None) -> Iterator[tuple[str, str]]:
    """Yield name and value of the rows of results; what was not measured says why.

    ``alone`` is the run on one process, the reason why there is none, or None if none was asked for.
    """
    quarters = " to ".join(map(milliseconds, np.percentile(run.seconds, [25, 75])))
    slowest = milliseconds(float(np.percentile(run.seconds, 95)))
    yield "step", f"{milliseconds(run.step)}, median of {plural(len(run.updates), 'update')}"
    yield "spread", f"half of the updates {quarters}, one in twenty {slowest} or longer"
    if run.long_seconds > SMALL_SHARE * run.step:
        yield "long updates", f"{_long(run)}: {milliseconds(run.long_seconds)} more in the mean update"
    if run.optimizers > 1:
        yield "update", f"{run.optimizers} steps of optimizers that take turns"
    no_rate = "the model is given no tensor whose first dimension is the batch"
    if run.optimizers > 1 or run.model["models"] > 1:
        no_rate = "several models are called, and no DataLoader says what an example is"
    yield "throughput", throughput(run) or f"not measured: {no_rate}"
    if isinstance(alone, str) and run.world > 1:
        yield "one process alone", f"not measured: {alone}"
    elif isinstance(alone, MeasuredRun) and run.world > 1:
        yield "one process alone", ", ".join(filter(None, [throughput(alone), f"{milliseconds(alone.step)} per step"]))
        share = efficiency(run, alone)
        yield "scaling efficiency", NO_EXAMPLES if share is None else f"{share:.0%} of {run.world} times one process"
    yield "communication", _communication(run)
    counted = ", of the processes" if run.model["device"] == "cpu" else ", by the allocator of torch"
    alike = max(run.memory) < 1.05 * min(run.memory)
    peaks = [in_words(max(run.memory), "B")] if alike else [in_words(peak, "B") for peak in run.memory]
    yield "memory", f"{', '.join(peaks)} {'per' if alike else 'by'} rank{counted}"


def throughput(run: MeasuredRun) -> str | None:
    """Return the rate in words; None if it is not known."""
    return None if run.rate is None else f"{run.rate:,.0f} {run.unit}/s over {plural(run.world, 'rank')}"


def _communication(run: MeasuredRun) -> str:
    if run.world == 1:
        return "none: one process"
    if not communicates(run):
        return f"not measured: {UNSEEN}"
    exposed, hidden = run.mean("exposed"), run.mean("hidden")
    text = f"{milliseconds(exposed + hidden)} per step, of which {milliseconds(exposed)} are exposed"
    sent = sum(nbytes for nbytes, _ in run.sums)
    return f"{text}; {in_words(sent, 'B')} of gradients in {plural(len(run.sums), 'call')}" if sent else text


def largest_loss(run: MeasuredRun) -> tuple[str, float]:
    """Return the part in which most time is lost, in words, and its seconds as the mean over ranks.

    If one rank is slow, the mean is over the others, which wait for it.
    """
    waiting = [rank for rank in range(run.world) if rank != run.slow]
    lost = {words: float(run.parts[part][waiting].mean()) for part, words in LOSSES.items()}
    if run.slow is not None:
        lost[f"waiting for rank {run.slow}, which is slower"] = lost.pop(LOSSES["waiting"])
    lost[f"updates that take more than {LONG:g} times the median, added to the mean update"] = run.long_seconds
    return max(lost.items(), key=lambda item: item[1])


def simulation_inputs(run: MeasuredRun) -> tuple[MeasuredStep, AlphaBeta] | str:
    """Return the step and the price of a message for a simulation of the step as it is, or why there is none."""
    if run.world == 1:
        return "one process sends nothing"
    if isinstance(run.simulated, str):
        return run.simulated
    if not run.model["bucketed"]:
        return "its gradients do not travel in buckets during backward"
    price = run.price_of_same_messages
    return price if isinstance(price, str) else (run.simulated, price)


def not_forecast(run: MeasuredRun) -> str | None:
    """Return why the step with other buckets, or on more ranks, cannot be simulated; None if it can."""
    inputs = simulation_inputs(run)
    return inputs if isinstance(inputs, str) else run.price if isinstance(run.price, str) else None
