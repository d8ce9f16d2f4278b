"""Measured run of a script: the parts of its step on each rank, its rate and its memory, from the ranks' journals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median, mode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import AlphaBeta, fit
from dpbook.core import DpbookError, milliseconds, plural
from dpbook.overlap import Span, Tensor, Timeline
from dpbook.overlap.timeline import difference
from dpbook.runs import watching
from dpbook.runs.forecast import WARMUP_UPDATES, MeasuredStep, NoForecast, fitted_connection, read_step
from dpbook.runs.watching import Call, UpdateOnRank

LEAST_UPDATES = 5
"""Updates below which nothing is measured."""
SMALL_SHARE = 0.05
"""Share of a step below which the verdict does not mention a part."""
LONG = 1.5
"""Multiple of the median step beyond which an update is a long one, as with an evaluation or a checkpoint."""
STEADY_SHARE = 2 / 3
"""Share of the updates in which the same rank computes longest, from which on that is no coincidence."""
SLOW_IN = {
    "computation": "in forward and backward",
    "loader": "waiting for the loader",
    "optimizer": "in the optimizer",
    "rest": "outside of forward, backward, loader and optimizer",
}
"""Parts of a step in which a rank may be slow, in words."""


class NotMeasured(DpbookError):
    """Raised if the journals do not show what the step of a script takes."""


@dataclass(frozen=True)
class MeasuredRun:
    """Updates of a run that count, on all of its ranks.

    Parts are shares of the middle half of the updates by their duration, times the median step: medians of parts would
    not add up to a step, and would hide waiting that alternates between ranks.

    Attributes:
        model: the journal's description of the model, on rank 0.
        updates: those that count, each a sequence over ranks.
        optimizers: optimizers that step in turn in an update of the journal; 1 for most scripts.
        total: updates that every rank has made, with those that do not count.
        memory: peak memory of each rank in bytes.
        workers: workers of the loader in most updates; None without a loader.
        simulated: the step without communication, for a simulation; or why there is none.
        link: time of an all-reduce by its bytes, if it was measured apart from the run.
    """

    model: dict[str, Any]
    updates: tuple[tuple[UpdateOnRank, ...], ...]
    optimizers: int
    total: int
    memory: tuple[int, ...]
    workers: int | None
    simulated: MeasuredStep | str
    link: AlphaBeta | None = None

    @property
    def world(self) -> int:
        return len(self.memory)

    @cached_property
    def all_parts(self) -> dict[str, NDArray[np.float64]]:
        """Parts of every update that counts, as `split` returns them."""
        return watching.split(self.updates)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of every update that counts, as the mean over ranks."""
        means: NDArray[np.float64] = self.all_parts["step"].mean(axis=1)
        return means

    @cached_property
    def step(self) -> float:
        """Median over the updates of their seconds, as the mean over ranks."""
        return float(np.median(self.seconds))

    @cached_property
    def middle(self) -> NDArray[np.bool_]:
        """Mask of the updates between the quartiles of their durations."""
        least, most = np.percentile(self.seconds, [25, 75])
        inside: NDArray[np.bool_] = (least <= self.seconds) & (self.seconds <= most)
        return inside if inside.any() else np.ones_like(inside)

    @cached_property
    def long(self) -> NDArray[np.bool_]:
        """Mask of the updates that take more than `LONG` times the median."""
        mask: NDArray[np.bool_] = self.seconds > LONG * self.step
        return mask

    @property
    def long_seconds(self) -> float:
        """Seconds that the long updates add to the mean duration of an update."""
        return float((self.seconds - self.step)[self.long].sum() / len(self.seconds))

    @cached_property
    def working(self) -> NDArray[np.float64]:
        """Seconds in which each rank neither communicates nor waits, of shape (updates, ranks)."""
        return self.all_parts["step"] - self.all_parts["exposed"] - self.all_parts["waiting"]

    @cached_property
    def parts(self) -> dict[str, NDArray[np.float64]]:
        """Seconds of each part of `PARTS`, of "hidden" communication and of the whole "step", for each rank."""
        scale = self.step / float(self.seconds[self.middle].mean())
        return {name: scale * each[self.middle].mean(axis=0) for name, each in self.all_parts.items()}

    def mean(self, part: str) -> float:
        """Return the seconds of a part as the mean over ranks."""
        return float(self.parts[part].mean())

    @cached_property
    def slow(self) -> int | None:
        """Rank that slows the others down, or None.

        It computes longer than any other by a tenth, waits less than half as long as they do, and computes longest in
        most updates. Where workers load for every rank and all ranks wait for them, time in the loader is no sign: the
        workers of a rank that is late by chance in one update stay ahead afterwards, so that it waits for the slowest
        rank in place of its loader.
        """
        if self.world == 1 or self.mean("waiting") < SMALL_SHARE * self.step:
            return None
        working = self.working
        if self.workers and self.parts["loader"].min() > SMALL_SHARE * self.step:
            working = working - self.all_parts["loader"]
        *others, last = np.argsort(working.mean(axis=0))
        means = working[self.middle].mean(axis=0)
        longest = (working[:, last] == working.max(axis=1)).mean()
        waiting = self.parts["waiting"]
        longer = means[last] > 1.1 * means[others].max()
        return int(last) if longer and longest >= STEADY_SHARE and waiting[last] < waiting[others].mean() / 2 else None

    @property
    def slow_in_words(self) -> str:
        """Time for which the slow rank works, and the part in which it differs most, beside the others', in words."""
        shares = {name: self.beside_the_others(self.parts[name]) for name in SLOW_IN}
        name = max(shares, key=lambda each: shares[each][0] - shares[each][1])
        working, others = map(milliseconds, self.beside_the_others(self.working[self.middle].mean(axis=0)))
        inside, others_inside = map(milliseconds, shares[name])
        text = (
            f"it works for {working} of a step, the others for {others}; of that it spends {inside} {SLOW_IN[name]}, "
            f"the others {others_inside}"
        )
        alike = name == "loader" and self.workers
        return f"{text} (its workers are slower, or only behind since a delay)" if alike else text

    def beside_the_others(self, seconds: NDArray[np.float64]) -> tuple[float, float]:
        """Return the seconds of the slow rank, and the median of the others'."""
        assert self.slow is not None
        return float(seconds[self.slow]), float(np.median(np.delete(seconds, self.slow)))

    @property
    def batches(self) -> float:
        """Batches that a rank takes from its loader in an update, on average."""
        return float(np.mean([one.batches for ranks in self.updates for one in ranks]))

    @property
    def ready_share(self) -> float:
        """Share of the batches that workers had ready when the script asked for them, on every rank.

        Each update waits for the rank that waits longest for its workers. Meanwhile those of the other ranks get ready.
        """
        return float(np.mean([min(one.ready for one in ranks) for ranks in self.updates])) / (self.batches or 1.0)

    @property
    def unit(self) -> str:
        """Unit of the inputs: "tokens" where they are integer token ids, else "examples"."""
        return "tokens" if any(one.tokens for ranks in self.updates for one in ranks) else "examples"

    @property
    def inputs(self) -> float:
        """Tokens or examples in an update, over all ranks; 0 if it is not known what an example is.

        A script with one model counts what it gives to the model; one with several what it draws from its loaders.
        """
        name = self.unit if self.optimizers == 1 and self.model["models"] == 1 else "loaded"
        return float(np.mean([sum(getattr(one, name) for one in ranks) for ranks in self.updates]))

    @property
    def rate(self) -> float | None:
        """Tokens or examples per second over all ranks and updates; None if it is not known what an example is."""
        return self.inputs / float(self.seconds.mean()) if self.inputs else None

    @property
    def gradient_bytes(self) -> int:
        return sum(Tensor(**tensor).nbytes for tensor in self.model["tensors"])

    @property
    def averages(self) -> bool:
        """Whether a wrapper averages the gradients."""
        return any(call.averages for ranks in self.updates for one in ranks for call in one.calls)

    @cached_property
    def sums(self) -> list[tuple[int, float]]:
        """Bytes and seconds of each all-reduce of gradients in a step: medians of what it took on the fastest rank.

        A call takes from its begin, or the end of the one before it, to its end. The rank that begins it last waits for
        no other.
        """
        averages = self.averages
        by_update = [[_transfers(one.calls, averages=averages) for one in ranks] for ranks in self.updates]
        counts = {len(calls) for ranks in by_update for calls in ranks}
        if len(counts) > 1 or counts == {0}:
            return []
        shortest = [[min(call, key=lambda pair: pair[1]) for call in zip(*ranks, strict=True)] for ranks in by_update]
        return [
            (int(median(nbytes for nbytes, _ in call)), median(seconds for _, seconds in call))
            for call in zip(*shortest, strict=True)
        ]

    @cached_property
    def price(self) -> AlphaBeta | str:
        """Time of an all-reduce of gradients by its bytes, fitted to those of the run, or why there is none."""
        if self.world == 1:
            return "one process sends nothing"
        line = self.link if self.link is not None else _fitted(self.sums)
        if isinstance(line, str):
            return line
        if not line.beta:
            return "large messages took no longer than small ones, so the bandwidth is not known"
        try:
            fitted_connection(self.world, line)
        except DpbookError:  # the slope is that of noise
            return f"the messages' times fit no link: it would carry {line.bandwidth:.2g} bytes per second"
        return line

    @property
    def price_of_same_messages(self) -> AlphaBeta | str:
        """Price of a step that sends the same messages: `price`, or their measured bandwidth."""
        if isinstance(self.price, str) and self.sums:
            nbytes, seconds = (sum(each) for each in zip(*self.sums, strict=True))
            return AlphaBeta(0.0, seconds / nbytes)
        return self.price

    @cached_property
    def timeline(self) -> Timeline:
        """The update of median duration; on each rank the time from the end of its previous update counts."""
        ranks = self.updates[int(np.argmin(np.abs(self.seconds - self.step)))]
        lengths = [one.waits[:, 1] - one.waits[:, 0] for one in ranks]
        counts = {len(of_rank) for of_rank in lengths}
        # Ranks with different numbers of waits: it is not known who waits for whom.
        shortest = np.min(lengths, axis=0) if len(counts) == 1 else np.zeros(max(counts))
        spans = [span for rank, one in enumerate(ranks) for span in _spans(rank, one, shortest)]
        return Timeline(tuple(spans), (0.0, max(one.seconds for one in ranks)))


def _transfers(calls: Sequence[Call], *, averages: bool) -> list[tuple[int, float]]:
    """Return bytes and seconds of the all-reduces of gradients of an update on one rank.

    Where no wrapper ``averages`` gradients, the script's own all-reduces are taken to do it.
    """
    found, before = [], 0.0
    for call in calls:
        if call.averages >= averages and call.name == "all_reduce":
            found.append((call.nbytes, max(call.ended - max(call.begun, before), 1e-9)))
            before = call.ended
    return found


def _fitted(sums: Sequence[tuple[int, float]]) -> AlphaBeta | str:
    if not sums:
        return "no all-reduce of gradients was seen, or not the same number on all ranks and in all updates"
    nbytes, seconds = zip(*sums, strict=True)
    if len(set(nbytes)) < 2:
        return f"all sums of gradients have {nbytes[0]:,} bytes, so latency and bandwidth cannot be told apart"
    line = fit(nbytes, seconds).model
    fitted, measured = sum(map(line, nbytes)), sum(seconds)
    if measured / 2 <= fitted <= 2 * measured:
        return line
    # calls of threads that work at once have no times of their own
    return (
        f"the messages' times fit no link: those of a step would take {milliseconds(fitted)} over it, and took "
        f"{milliseconds(measured)}"
    )


def _spans(rank: int, one: UpdateOnRank, shortest: NDArray[np.float64]) -> Iterator[Span]:
    """Yield what a rank does; in a wait it first waits for the slowest rank, and then communicates.

    ``shortest`` has the time of the rank that waits shortest, for each wait. A collective that begins while another is
    under way is drawn behind it.
    """
    for name, moments in (("forward", one.forward), ("backward", one.backward), ("optimizer", one.updating)):
        computed = moments if name == "optimizer" else difference(difference(moments, one.blocked), one.loader)
        yield from (Span(name, rank, "compute", "computation", begun, ended) for begun, ended in computed.tolist())
    late = [[begun, ended - float(seconds)] for (begun, ended), seconds in zip(one.waits, shortest, strict=False)]
    waiting = np.array([pair for pair in late if pair[1] > pair[0]]).reshape(-1, 2)
    yield from (Span("wait", rank, "waiting", "wait", begun, ended) for begun, ended in waiting.tolist())
    reached = 0.0
    for number, call in enumerate(one.calls, start=1):
        under_way = difference(np.array([[max(call.begun, reached), max(call.ended, reached)]]), waiting)
        reached = max(call.ended, reached)
        name = f"{call.name.replace('_', '-')} {number}"
        yield from (Span(name, rank, "communication", "communication", *pair) for pair in under_way.tolist())


def read_run(folder: Path, world: int, link: AlphaBeta | None = None) -> MeasuredRun:
    """Read the journals of ``world`` ranks in ``folder``; ``link`` as in `MeasuredRun`. Raises `NotMeasured`."""
    for rank in range(world):
        if not (folder / watching.JOURNAL.format(rank)).is_file():
            raise NotMeasured(f"rank {rank} wrote no journal: it failed before it began, or ran on another machine")
    journals = [watching.read_journal(folder, rank) for rank in range(world)]
    models = [event for of_rank in reversed(journals) for event in of_rank if event["kind"] == "model"]
    if not models:
        raise NotMeasured("no update was seen: the script steps no optimizer of torch.optim")
    model = models[-1]  # of the lowest rank that has one
    if model.get("format") != watching.MOMENTS_FORMAT:
        raise NotMeasured("the journals were written by another version of dpbook: launch the script again")
    worlds = sorted({event["world"] for event in models} | {world})
    if len(worlds) > 1:
        counts = " and ".join(map(str, worlds))
        raise NotMeasured(f"its journals are from runs on {counts} ranks: record the run again, into a new folder")
    events = [[event for event in of_rank if event["kind"] == "update"] for of_rank in journals]
    total = min(of_rank[-1]["number"] + 1 if of_rank else 0 for of_rank in events)
    if total < LEAST_UPDATES:
        raise NotMeasured(
            f"the script ended after {plural(total, 'update')}; {LEAST_UPDATES} are needed, of which the first "
            f"{WARMUP_UPDATES} do not count"
        )
    period = watching.rounds(events[0][WARMUP_UPDATES:])
    if not period:
        raise NotMeasured("the optimizers step in no regular order, so the end of an update is unknown")
    joined = [{event["number"]: event for event in watching.in_rounds(of_rank, period)} for of_rank in events]
    numbers = [n for n in joined[0] if n >= WARMUP_UPDATES and all(n in of_rank for of_rank in joined)]
    if not numbers:
        raise NotMeasured(f"{period} optimizer steps make an update, and no update was complete on all ranks")
    updates = tuple(tuple(watching.read_update(of_rank[n], world) for of_rank in joined) for n in numbers)
    memory = tuple(of_rank[-1]["memory"] for of_rank in events)
    workers = mode(joined[0][number]["workers"] for number in numbers)
    model = model | {"models": max(joined[0][number]["models"] for number in numbers)}
    return MeasuredRun(model, updates, period, total, memory, workers, _simulated(journals, period), link)


def _simulated(journals: Sequence[Sequence[Any]], period: int) -> MeasuredStep | str:
    if period > 1:
        return f"{period} steps of optimizers make an update, each after a backward of its own"
    try:
        return read_step(journals)
    except NoForecast as error:
        return str(error)
