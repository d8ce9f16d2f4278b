"""Parts of an update on every rank, from the journals: the one decomposition of a measured step. Loads no torch.

The parts of a rank are disjoint sets of moments, in this order: what belongs to one belongs to no later one.

loader       the next batch is waited for
blocked      what trains waits for communication: in a collective, for its handle, or from the last gradient of a
             backward until the sums of the gradients have arrived
computation  forward and backward
optimizer    clipping, and the optimizer's step
rest         everything else

What is blocked longer than on the rank that is blocked shortest in the same wait is waiting for the slowest rank; the
shortest is exposed communication.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.overlap.timeline import difference, length, union
from dpbook.runs.watching.journal import READY

Event = Mapping[str, Any]
Intervals = NDArray[np.float64]


@dataclass(frozen=True)
class Call:
    """A collective on one rank: its name, the bytes of its largest tensor, begin and end in seconds, and its line.

    ``averages``: whether it sums gradients during a backward that a wrapper averages.
    """

    name: str
    nbytes: int
    begun: float
    ended: float
    place: tuple[str, int, str] | None
    averages: bool = False


@dataclass(frozen=True)
class UpdateOnRank:
    """One update on one rank: sets of moments in seconds since its begin, and what it computed.

    Attributes:
        number: updates of this rank before it.
        seconds: duration.
        loader, forward, backward, optimizer: moments of the passes and calls of these names.
        waits: disjoint intervals in which communication was waited for, in order, of shape (n, 2).
        calls: collectives, in order of their begin.
        examples, tokens, loaded: of the inputs of forwards, and of the batches of loaders.
        batches, ready: batches of loaders, and how many of them a worker had ready.
    """

    number: int
    seconds: float
    loader: Intervals
    forward: Intervals
    backward: Intervals
    optimizer: Intervals
    waits: Intervals
    calls: tuple[Call, ...]
    examples: int
    tokens: int
    loaded: int
    batches: int
    ready: int

    @cached_property
    def blocked(self) -> Intervals:
        """Moments in which communication is waited for."""
        return difference(union(self.waits), self.loader)

    @cached_property
    def computation(self) -> Intervals:
        """Moments of forward and backward in which nothing is waited for."""
        return reduce(difference, [self.loader, self.blocked], union(np.concatenate([self.forward, self.backward])))

    @cached_property
    def updating(self) -> Intervals:
        """Moments of the optimizer in which nothing is waited for."""
        return reduce(difference, [self.loader, self.blocked, self.computation], self.optimizer)

    @property
    def hidden(self) -> float:
        """Seconds in which a collective is under way while this rank does not wait for it."""
        calls = union(np.array([[call.begun, call.ended] for call in self.calls]).reshape(-1, 2))
        return length(difference(calls, self.blocked))


class MicroBatch(NamedTuple):
    """A micro-batch on one rank: when its forward and its backward begin, and when backward has returned.

    ``ready``: when each gradient was ready for the last time, by its number, in order. ``synced``: whether a wrapper
    averages them.
    """

    forward: float
    begun: float
    returned: float
    ready: Mapping[int, float]
    synced: bool

    @property
    def last_ready(self) -> float:
        """Moment at which all gradients were ready."""
        return max(self.ready.values())


def micro_batches(event: Event) -> Iterator[MicroBatch]:
    """Yield the micro-batches of an event ``update`` whose backward computed gradients of a recorded optimizer."""
    forward, begun = None, 0.0
    ready: dict[int, float] = {}
    synced = iter(event["synced"])
    for kind, at in event["marks"]:
        if kind == "forward":
            forward = at if forward is None else forward
        elif kind == "backward":
            begun, ready = at, {}
        elif isinstance(kind, int):
            ready.pop(kind, None)  # a gradient that is added to twice is ready the last time
            ready[kind] = at
        elif kind == "returned":
            averaged = next(synced)
            if ready:
                yield MicroBatch(begun if forward is None else forward, begun, at, ready, averaged)
                forward = None


def read_update(event: Event, world: int) -> UpdateOnRank:
    """Return the update of an event ``update`` of a rank's journal."""
    end = float(event["marks"][-1][1])
    spans = [(kind, min(begun, end), min(ended, end), *more) for kind, begun, ended, *more in event["spans"]]
    loads = [name for kind, _, _, name, *_ in spans if kind == "loader"]
    sets = {kind: union(_of_kind(spans, kind)) for kind in ("loader", "forward", "backward", "optimizer")}
    averaged = [one for one in micro_batches(event) if one.synced and world > 1]
    sums = [] if event["own_hook"] else [(begun, ended) for kind, begun, ended, *_ in spans if kind == "call"]
    waits = _of_kind(spans, "wait").tolist()
    for one in averaged:  # from the last gradient until the last sum; until the end if no arrival is known
        arrived = max((ended for begun, ended in sums if one.begun <= begun <= one.returned), default=one.returned)
        if one.last_ready < (end_of_wait := min(one.returned, arrived)):
            waits.append([one.last_ready, end_of_wait])
    within = [(one.begun, one.returned) for one in averaged]
    calls = [
        Call(name, nbytes, begun, ended, tuple(place) if place else None, any(a <= begun <= b for a, b in within))
        for kind, begun, ended, name, nbytes, place in spans
        if kind == "call" or (kind == "wait" and name != "wait")
    ]
    return UpdateOnRank(
        event["number"], end, sets["loader"], sets["forward"], sets["backward"], sets["optimizer"],
        _one_after_another(waits), tuple(sorted(calls, key=lambda call: call.begun)), event["examples"],
        event["tokens"], event["loaded"], len(loads), loads.count(READY),
    )  # fmt: skip


def _of_kind(spans: Iterable[Sequence[Any]], kind: str) -> Intervals:
    return np.array([span[1:3] for span in spans if span[0] == kind], dtype=float).reshape(-1, 2)


def _one_after_another(intervals: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return the intervals in order of their begin, each from the end of those before it on; some may be empty."""
    ordered, reached = [], 0.0
    for begun, ended in sorted(map(tuple, intervals)):
        ordered.append([max(begun, reached), max(ended, reached)])
        reached = max(ended, reached)
    return np.array(ordered).reshape(-1, 2)


PARTS = ("computation", "exposed", "waiting", "loader", "optimizer", "rest")
"""Parts of a step, which add up to it."""


def split(updates: Sequence[Sequence[UpdateOnRank]]) -> dict[str, NDArray[np.float64]]:
    """Return the `PARTS` of ``updates``, each a sequence over ranks, in seconds: arrays of shape (updates, ranks).

    Two more have the whole "step", and the "hidden" communication during which a rank does not wait.
    """

    def seconds(value: Callable[[UpdateOnRank], float]) -> NDArray[np.float64]:
        return np.array([[float(value(one)) for one in ranks] for ranks in updates])

    blocked, step = seconds(lambda one: length(one.blocked)), seconds(lambda one: one.seconds)
    exposed = np.array([_exposed(ranks) for ranks in updates]).reshape(blocked.shape)
    parts = {
        "computation": seconds(lambda one: length(one.computation)),
        "exposed": exposed,
        "waiting": blocked - exposed,
        "loader": seconds(lambda one: length(one.loader)),
        "optimizer": seconds(lambda one: length(one.updating)),
    }
    return parts | {"rest": step - sum(parts.values()), "hidden": seconds(lambda one: one.hidden), "step": step}


def _exposed(ranks: Sequence[UpdateOnRank]) -> list[float]:
    """Return the exposed communication of each rank: of every wait, that of the rank which waits shortest.

    Ranks that wait a different number of times are compared by the whole update.
    """
    blocked = [length(one.blocked) for one in ranks]
    if len({len(one.waits) for one in ranks}) > 1:
        return [min(blocked)] * len(ranks)
    lengths = np.array([[length(difference(wait[None], one.loader)) for wait in one.waits] for one in ranks])
    shortest = float(lengths.min(axis=0).sum()) if lengths.size else 0.0
    return [min(shortest, whole) for whole in blocked]


def rounds(events: Sequence[Event]) -> int:
    """Return the number of updates after which the optimizers of a script repeat themselves; 0 if they do not.

    A script with one optimizer has 1. One whose two optimizers step in turn, each after a backward of its own, has 2.
    """
    stepped = [tuple(sorted(event["stepped"])) for event in events]
    for period in range(1, 1 + len(events) // 2):
        pairs = [
            (stepped[k], stepped[k + period])
            for k in range(len(events) - period)
            if events[k + period]["number"] == events[k]["number"] + period
        ]
        if pairs and all(first == second for first, second in pairs):
            return period
    return 0


def _joined(events: Sequence[Event]) -> dict[str, Any]:
    """Return consecutive updates as one."""
    marks: list[Any] = [("begun", 0.0)]
    spans: list[Any] = []
    offset = 0.0
    for event in events:
        marks += [(kind, offset + at) for kind, at in event["marks"] if kind != "begun"]
        spans += [(kind, offset + begun, offset + ended, *more) for kind, begun, ended, *more in event["spans"]]
        offset = marks[-1][1]
    return {
        **events[0],
        **{name: sum(event[name] for event in events) for name in ("examples", "tokens", "loaded")},
        "marks": marks,
        "spans": spans,
        "synced": [each for event in events for each in event["synced"]],
        "stepped": sorted({each for event in events for each in event["stepped"]}),
        "models": max(event["models"] for event in events),
    }


def in_rounds(events: Sequence[Event], period: int) -> list[dict[str, Any]]:
    """Return the rounds of ``period`` updates that are complete, each joined, in order."""
    by_round: dict[int, list[Event]] = {}
    for event in events:
        by_round.setdefault(event["number"] // period, []).append(event)
    complete = [group for group in by_round.values() if len(group) == period]
    assert all(b["number"] == a["number"] + 1 for group in complete for a, b in pairwise(group))
    return [_joined(group) for group in complete]
