"""Measured step of a script: a launch times some updates, and layers and caveats are made from their journals.

Loads no torch.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpbook.collectives import Link
from dpbook.core import DpbookError, listed, milliseconds, plural, temporary_folder
from dpbook.overlap import Layer, Tensor
from dpbook.runs.launch import Launch
from dpbook.runs.watching import micro_batches, read_journal
from dpbook.runs.watching.watched_launch import Reporter, launch_watched


@dataclass(frozen=True)
class UpdateTimes:
    """Times of one update on one rank, in seconds.

    Attributes:
        other: time outside of the other parts: data, logging, anything between two micro-batches.
        forwards, backwards: time for each micro-batch; a backward ends when its last gradient is ready.
        gaps: for each gradient of the last backward, in order of readiness: its number and the time since the previous.
        after: from the last sum of gradients to the end of the update: the wrapper's copies and the optimizer.
        period: the whole update, including the time spent waiting for sums, which is in no other field.
        early: whether a backward before the last one was synced too.
        own_calls: number of collectives that a line of the script calls by name.
    """

    other: float
    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    gaps: tuple[tuple[int, float], ...]
    after: float
    period: float
    early: bool
    emulated: bool
    own_calls: int

    @property
    def alone(self) -> float:
        """Seconds of the update without waiting."""
        return self.other + sum(self.forwards) + sum(self.backwards) + self.after


def time_update(event: Mapping[str, Any], world: int) -> UpdateTimes | None:
    """Return the times of an update on ``world`` ranks, or None if no backward computed a gradient.

    The time between the marks of ``event``, (kind, seconds) each, is assigned to the parts of the update.
    """
    other = after = last = 0.0
    forwards: list[float] = []
    backwards: list[float] = []
    gaps: tuple[tuple[int, float], ...] = ()
    arrivals = [ended for kind, _, ended, *_ in event["spans"] if kind == "call" and not event["own_hook"]]
    for one in micro_batches(event):
        arrived = max((end for end in arrivals if one.begun < end <= one.returned), default=0.0)
        other += after + one.forward - last  # the previous micro-batch was not the last one
        forwards.append(one.begun - one.forward)
        gaps = tuple(zip(one.ready, (b - a for a, b in pairwise([one.begun, *one.ready.values()])), strict=True))
        backwards.append(one.last_ready - one.begun)
        waits = one.synced and world > 1
        after = one.returned - max(one.last_ready, arrived) if arrived or not waits else 0.0
        last = one.returned
    if not gaps:
        return None
    end = event["marks"][-1][1]
    calls = [(name, place) for kind, _, _, name, _, place in event["spans"] if kind == "call"]
    return UpdateTimes(
        other,
        tuple(forwards),
        tuple(backwards),
        gaps,
        after=after + end - last,
        period=end,
        early=any(event["synced"][:-1]),
        emulated=event["emulated"],
        own_calls=sum(place is not None and name in place[2] for name, place in calls),
    )


SHORT_SECONDS = 0.03
"""Update on a CPU below which the host's own work, which is not modelled, decides."""
OTHER_SHARE = 0.1
"""Share of an update outside of forward, backward and optimizer above which a note reports it."""
SPREAD_RATIO = 1.25
"""Ratio of the third quartile of updates to the first above which a note reports that they differ."""


def notes(model: Mapping[str, Any], updates: Sequence[UpdateTimes]) -> Iterator[str]:
    """Yield the caveats of a forecast from the event ``model`` of the journal and the updates that count."""
    if len({tuple(number for number, _ in one.gaps) for one in updates}) > 1:
        yield "gradients do not become ready in the same order in every update; that of the last one counts"
    other = statistics.median(one.other / one.alone for one in updates)
    if other > OTHER_SHARE:
        yield f"{other:.0%} of an update is outside of forward, backward and optimizer (data?): no link changes it"
    times = sorted(one.alone for one in updates)
    short, long = times[len(times) // 4], times[3 * len(times) // 4]
    if len(times) >= 4 and long > SPREAD_RATIO * short:
        half = f"{milliseconds(short)} to {milliseconds(long)}"
        yield f"updates differ: half of them take {half}; medians are forecast, and --updates 100 makes them steadier"
    with_gradient = {number for number, _ in updates[-1].gaps}
    if missing := [tensor["name"] for number, tensor in enumerate(model["tensors"]) if number not in with_gradient]:
        yield f"no gradient for {listed(missing, 3)}: left out, though DDP sends them"
    if model["world"] == 1:
        yield "each rank is taken to have a batch as large as this process has: a script that divides it needs --nproc"
    if model["device"] == "cpu" and model["world"] == 1:
        yield "on a CPU: each rank is taken to have a machine like this to itself; GPUs compute faster and gain less"
    if model["own_hook"]:
        yield "its communication hook is left out: gradients are priced as they are"
    if model["world"] > 1 and not model["wrapper"]:
        yield "no DistributedDataParallel: averaging of its own is counted as the optimizer's"
    if calls := max(one.own_calls for one in updates):
        yield f"left out: {plural(calls, 'collective')} of an update that the script calls itself"
    if model["buffers"] and model["wrapped"]:
        yield f"left out: DDP's broadcast of {model['buffers']} buffers before a forward"
    typical = statistics.median(times)
    if model["device"] == "cpu" and typical < SHORT_SECONDS:
        reason = f"an update of {milliseconds(typical)} is mostly Python's own work, which the forecast does not model"
        yield f"{reason}: real steps took up to twice as long in what was tried, so the speed-up is smaller"


WARMUP_UPDATES = 3
"""First updates, which do not count: torch's DDP rebuilds its buckets, and memory is allocated."""


class NoForecast(DpbookError):
    """Raised if a script makes too few updates, or does something that is not modelled."""


@dataclass(frozen=True)
class MeasuredStep:
    """Parts of an update without communication, in seconds: medians over the updates that count.

    Attributes:
        layers: one layer for each gradient of a micro-batch, in reverse order of readiness. The time of forward is
            divided among layers as that of backward is.
        other: time outside of forward, backward and optimizer, such as data; the same on each rank.
        after: time after the gradients' sums have arrived: clipping, the optimizer, copies of the wrapper.
        accumulation: micro-batches in an update.
        divided: whether the script divides these micro-batches among its ranks, as seen on two.
        no_sync: whether only the last micro-batch is synced.
        updates: number of updates that counted.
        world: ranks that ran at the same time.
        cap: bytes of the wrapper's buckets if the script sets them; None for torch's default.
        first: bytes of its first bucket if the script sets them; None for those of ``cap``.
        units: names of the modules that sharding gathers as one.
        frozen: numbers of elements of the parameters that are not trained, by name.
        emulated_seconds: time of an update over the emulated link; None if there is none, or if the gradients did not
            go through an unmodified DDP of torch.
        waited: time for which the updates that count waited for their gradients over the real link.
        notes: caveats in words: peculiarities of the script, and parts that the forecast omits.
    """

    layers: tuple[Layer, ...]
    other: float
    after: float
    accumulation: int = 1
    divided: bool = False
    no_sync: bool = True
    updates: int = 1
    world: int = 1
    cap: int | None = None
    first: int | None = None
    units: tuple[str, ...] = ()
    frozen: Mapping[str, int] | None = None
    emulated_seconds: float | None = None
    waited: float = 0.0
    notes: tuple[str, ...] = ()

    def on(self, world: int) -> "MeasuredStep":
        """Return the step of one of ``world`` ranks; that of this one unless the script divides its micro-batches.

        Raises `NoForecast` if they cannot be divided by ``world``.
        """
        if not self.divided:
            return self
        if self.accumulation % world:
            batches = f"the script divides its {self.accumulation} micro-batches among its ranks"
            raise NoForecast(f"{batches}, which {world} does not divide: choose other numbers with --gpus")
        return replace(self, accumulation=self.accumulation // world, divided=False)

    @property
    def forward(self) -> float:
        """Seconds over all micro-batches."""
        return self.accumulation * sum(layer.forward for layer in self.layers)

    @property
    def backward(self) -> float:
        """Seconds over all micro-batches."""
        return self.accumulation * sum(layer.backward for layer in self.layers)

    @property
    def alone(self) -> float:
        """Seconds of the whole update without communication."""
        return self.other + self.forward + self.backward + self.after

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part of the update, by its name."""
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.after, "other": self.other}


def read_step(journals: Sequence[Sequence[Mapping[str, Any]]]) -> MeasuredStep:
    """Return the measured step from the journals of all ranks. Raises `NoForecast`.

    For each update the slowest rank counts, because the others wait for it. An update over the emulated link counts
    with the mean over ranks, because all end at about the same time.
    """
    model = next((event for event in reversed(journals[0]) if event["kind"] == "model"), None)
    if model is None:
        raise NoForecast("no update of an optimizer was seen: is it one of torch.optim, and does the script train?")
    if model["sharded"]:
        raise NoForecast(
            "its parameters are sharded (fully_shard, DTensor), so that no gradient is seen when it is ready: forecast "
            "the plain model, with --stages 3"
        )
    if {tensor["dtype"] for tensor in model["tensors"]} - {"float64", "float32", "float16", "bfloat16"}:
        raise NoForecast("the script trains tensors whose dtype is not a floating-point type of 2, 4 or 8 bytes")
    ranks = [
        [time_update(e, len(journals)) for e in events if e["kind"] == "update" and e["detailed"]]
        for events in journals
    ]
    by_update = [[one for one in of_ranks if one is not None] for of_ranks in zip(*ranks, strict=False)]
    counted = [of_ranks for of_ranks in by_update[WARMUP_UPDATES:] if of_ranks]
    free = [max(of_ranks, key=lambda one: one.alone) for of_ranks in counted if not of_ranks[0].emulated]
    if not free:
        raise NoForecast(
            f"the script made {len(by_update)} updates; the first {WARMUP_UPDATES} do not count, and one more is needed"
        )
    if len({frozenset(number for number, _ in one.gaps) for of_ranks in counted for one in of_ranks}) > 1:
        raise NoForecast(
            "its updates differ in which gradients they make (optimizers that step in turn, each after a backward of "
            "its own, or parts that are used now and then); that is not modelled"
        )
    emulated = [statistics.mean(one.period for one in of_ranks) for of_ranks in counted if of_ranks[0].emulated]
    by_ddp = model["wrapped"] and not model["own_hook"]
    return _medians(model, free, emulated if by_ddp else [])


def _medians(model: Mapping[str, Any], updates: Sequence[UpdateTimes], emulated: Sequence[float]) -> MeasuredStep:
    """Return the step; its gradients have the order in which they became ready in the last of the updates."""

    def middle(value: Callable[[UpdateTimes], float]) -> float:
        return statistics.median(map(value, updates))

    order = [number for number, _ in updates[-1].gaps]
    micro_batches = round(middle(lambda one: len(one.forwards)))
    forward = middle(lambda one: sum(one.forwards) / len(one.forwards))
    backward = middle(lambda one: one.backwards[-1])
    other, after = middle(lambda one: one.other), middle(lambda one: one.after)
    # Medians of parts do not add up to the median of whole updates, and whole updates are forecast.
    scale = middle(lambda one: one.alone) / (other + micro_batches * (forward + backward) + after)
    gaps = {number: statistics.median(dict(one.gaps)[number] for one in updates) for number in order}
    shares = {number: scale * gap / (sum(gaps.values()) or 1.0) for number, gap in gaps.items()}
    tensors = [Tensor(each["name"], tuple(each["shape"]), each["dtype"], each["device"]) for each in model["tensors"]]
    layers = tuple(
        Layer(tensors[number].name, forward * shares[number], backward * shares[number], (tensors[number],))
        for number in reversed(order)
    )
    return MeasuredStep(
        layers,
        other=scale * other,
        after=scale * after,
        accumulation=micro_batches,
        no_sync=not any(one.early for one in updates),
        updates=len(updates),
        world=model["world"],
        cap=model["cap"],
        first=model["first"],
        units=tuple(model["units"]),
        frozen=model["frozen"],
        emulated_seconds=statistics.median(emulated) if emulated else None,
        waited=middle(lambda one: one.period - one.alone),
        notes=tuple(notes(model, updates)),
    )


class ScriptStopped(NoForecast):
    """Raised if a signal ended the script; ``status`` is 128 plus its number."""

    def __init__(self, status: int) -> None:
        super().__init__("the script ended before enough updates were measured")
        self.status = status


def measure_step(
    spec: Launch,
    updates: int = 12,
    report: Reporter = lambda text: None,
    *,
    check: bool = False,
    link: Link | None = None,
) -> MeasuredStep:
    """Run a script until enough of its updates are measured, and return its step.

    Args:
        spec: launch of the script.
        updates: number of updates that count.
        report: receives sentences on the progress.
        check: also make as many updates over ``link``, alternating with the others, to compare the forecast with.
        link: emulated link: the bytes arrive when it would have delivered them.

    Raises:
        NoForecast: if the script makes too few updates, fails, or does something that is not modelled.
        ScriptStopped: after Ctrl-C.
    """
    with temporary_folder("forecast") as folder:
        wanted = WARMUP_UPDATES + updates * (2 if check else 1)
        emulated = (link.latency, link.bandwidth) if link else None
        ended, reason = launch_watched(
            spec, folder, {"updates": wanted, "check": check, "link": emulated}, moments=True,
            progress=lambda: _progress(folder, wanted), report=report,
        )  # fmt: skip
        if ended.status > 128:
            raise ScriptStopped(ended.status)
        if ended.status:
            raise NoForecast(f"the script failed: {reason}")
        return read_step([read_journal(folder, rank) for rank in range(spec.nproc)])


def _progress(folder: Path, updates: int) -> str:
    recorded = sum(event["kind"] == "update" for event in read_journal(folder, 0))
    return f"{recorded} of {plural(updates, 'update')} seen; Ctrl-C ends it"
