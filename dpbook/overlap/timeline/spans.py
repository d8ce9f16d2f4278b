"""Spans and timelines, the result of a simulated step and of a profiler trace alike, and sets of moments.

A set of moments is a float64 array of shape (n, 2): n intervals [start, end), sorted, disjoint, none of them empty.
`union` makes one from any intervals; the other functions take and return such sets. Times in seconds.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, check_float, check_int, check_one_of, check_type, milliseconds, plural

Intervals: TypeAlias = NDArray[np.float64]


def union(intervals: ArrayLike) -> Intervals:
    """Return the set of moments covered by any of ``intervals``, of shape (n, 2), in any order, overlapping or not.

    Raises `InvalidArgument` for another shape, a time that is not finite, or an interval that ends before it starts.
    """
    spans = _check(intervals)
    spans = spans[spans[:, 1] > spans[:, 0]]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(spans):
        return np.empty((0, 2))
    reach = np.maximum.accumulate(spans[:, 1])
    gap = spans[1:, 0] > reach[:-1]  # intervals that touch are one
    return np.column_stack([spans[np.r_[True, gap], 0], reach[np.r_[gap, True]]])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that are in both sets, as `union` returns them."""
    return _where(a, b, lambda in_a, in_b: in_a & in_b)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments of ``a`` that are not in ``b``, as `union` returns them."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def length(a: Intervals) -> float:
    """Return the total length of a set, in seconds."""
    return float(np.sum(a[:, 1] - a[:, 0]))


def _where(a: Intervals, b: Intervals, keep: Callable[..., NDArray[np.bool_]]) -> Intervals:
    """Cut the time line at every bound of either set, and return the pieces for which ``keep`` is true."""
    cuts = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    pieces = np.column_stack([cuts[:-1], cuts[1:]])
    return union(pieces[keep(_inside(a, pieces[:, 0]), _inside(b, pieces[:, 0]))])


def _inside(a: Intervals, moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the moments in the set, which have one more start than ends at or before them."""
    started = np.searchsorted(a[:, 0], moments, side="right")
    ended = np.searchsorted(a[:, 1], moments, side="right")
    inside: NDArray[np.bool_] = started > ended
    return inside


def _check(intervals: ArrayLike) -> Intervals:
    spans = np.asarray(intervals, dtype=np.float64)
    if spans.size == 0:
        return np.empty((0, 2))
    if spans.ndim != 2 or spans.shape[1] != 2:
        raise InvalidArgument("intervals", spans.shape, "of shape (n, 2): one (start, end) per row")
    if not np.isfinite(spans).all() or (spans[:, 1] < spans[:, 0]).any():
        raise InvalidArgument("intervals", intervals, "finite, none ending before it starts")
    return spans


Kind: TypeAlias = Literal["computation", "communication", "wait", "launch", "copy"]
"""Kind of a span: arithmetic; bytes that move between ranks; a collective that waits for its peers; the CPU launching
work on a device; bytes that move between host and device."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class Span(NamedTuple):
    """An interval in which something ran on one lane, which is a stream or a thread of one rank.

    Attributes:
        name: name of the work. That of a computation begins with its phase where it is known: "forward", "backward" or
            "optimizer".
        start, end: in seconds.
        ready: moment at which the last gradient of a collective was complete on this rank, in seconds. For a device's
            kernel, the moment at which the host had launched it. None if unknown, and for all other spans.
    """

    name: str
    rank: int
    lane: str
    kind: Kind
    start: float
    end: float
    ready: float | None = None

    @property
    def duration(self) -> float:
        """Length of the span in seconds."""
        return self.end - self.start

    def moved(self, move: Callable[[float], float]) -> "Span":
        """Return the span with ``move`` applied to each of its times."""
        ready = None if self.ready is None else move(self.ready)
        return self._replace(start=move(self.start), end=move(self.end), ready=ready)


@dataclass(frozen=True)
class Timeline:
    """Spans, and the window of time that is the step.

    Every figure comes from unions of intervals inside the window, never from sums: spans that are nested or run at
    the same time count once. A method whose ``rank`` is None returns the mean over ranks.

    ``spans`` are sorted by rank, lane and start. ``window`` is (start, end) in seconds, by default from the first start
    to the last end. Raises `InvalidArgument` if a span is of an unknown kind, has a negative rank or ends before it
    starts, and if the window is missing where there are no spans, or ends before it starts.
    """

    spans: tuple[Span, ...]
    window: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        spans = _check_spans(self.spans)
        object.__setattr__(self, "spans", tuple(sorted(spans, key=lambda s: (s.rank, s.lane, s.start, s.end))))
        object.__setattr__(self, "window", _check_window(self.window, spans))

    @property
    def start(self) -> float:
        """Start of the window in seconds."""
        assert self.window is not None
        return self.window[0]

    @property
    def end(self) -> float:
        """End of the window in seconds."""
        assert self.window is not None
        return self.window[1]

    @property
    def duration(self) -> float:
        """Length of the window in seconds: the step time."""
        return self.end - self.start

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have spans, sorted."""
        return tuple(sorted({span.rank for span in self.spans}))

    def lanes(self, rank: int) -> tuple[str, ...]:
        """Return the lanes of a rank, sorted by name."""
        return tuple(dict.fromkeys(span.lane for span in self.spans if span.rank == rank))

    def when(self, kind: Kind, rank: int) -> Intervals:
        """Return the intervals inside the window in which ``rank`` runs anything of this kind, of shape (n, 2)."""
        check_one_of("kind", kind, KINDS)
        if rank not in self.ranks:
            raise InvalidArgument("rank", rank, f"one of {', '.join(map(str, self.ranks)) or 'none: no spans'}")
        return self._when[kind, rank]

    def busy(self, kind: Kind, rank: int | None = None) -> float:
        """Return the seconds in which anything of this kind runs."""
        return self._mean(rank, lambda r: self.when(kind, r))

    def exposed(self, rank: int | None = None) -> float:
        """Return the seconds in which communication runs and computation does not: the most that a step could save.

        Waiting for peers is excluded where it has spans of its own: see ``busy("wait")``.
        """
        return self._mean(rank, lambda r: difference(self.when("communication", r), self.when("computation", r)))

    def hidden(self, rank: int | None = None) -> float:
        """Return the seconds in which communication and computation both run."""
        return self._mean(rank, lambda r: intersection(self.when("communication", r), self.when("computation", r)))

    def idle(self, rank: int | None = None) -> float:
        """Return the seconds in which no computation runs."""
        return self._mean(rank, lambda r: difference(np.array([[self.start, self.end]]), self.when("computation", r)))

    def overlap(self, rank: int | None = None) -> float:
        """Return the share of communication during which computation runs, from 0 to 1; 0 without communication.

        It is not the share of time saved: if both use the same cores, an overlap of a half may save nothing.
        """
        communication = self.busy("communication", rank)
        return self.hidden(rank) / communication if communication else 0.0

    def of(self, rank: int) -> "Timeline":
        """Return the spans of one rank, in the same window."""
        return Timeline(tuple(span for span in self.spans if span.rank == rank), self.window)

    def shifted(self, seconds: float) -> "Timeline":
        """Return the timeline shifted by ``seconds``, to align traces whose clocks differ."""
        by = check_float("seconds", seconds)
        spans = tuple(span.moved(lambda moment: moment + by) for span in self.spans)
        return Timeline(spans, (self.start + by, self.end + by))

    @cached_property
    def _when(self) -> dict[tuple[str, int], Intervals]:
        times_of: dict[tuple[str, int], list[tuple[float, float]]] = {(k, r): [] for k in KINDS for r in self.ranks}
        for span in self.spans:
            times_of[span.kind, span.rank].append((span.start, span.end))
        arrays = {key: np.array(times).reshape(-1, 2) for key, times in times_of.items()}
        return {key: union(np.clip(times, self.start, self.end)) for key, times in arrays.items()}

    def _mean(self, rank: int | None, moments: Callable[[int], Intervals]) -> float:
        ranks = self.ranks if rank is None else (rank,)
        return sum(length(moments(r)) for r in ranks) / len(ranks) if ranks else 0.0

    def __repr__(self) -> str:
        if not self.spans:
            return f"Timeline of {milliseconds(self.duration)}, no spans"
        return (
            f"Timeline of {milliseconds(self.duration)}, {plural(len(self.ranks), 'rank')}: "
            f"computation {milliseconds(self.busy('computation'))}, "
            f"communication {milliseconds(self.busy('communication'))}, "
            f"exposed {milliseconds(self.exposed())}"
        )


def _check_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    spans = tuple(check_type("spans", spans, Iterable, "a tuple of Span"))
    for index, span in enumerate(spans):
        check_type(f"spans[{index}]", span, Span, "a Span")
        check_one_of(f"kind of {span.name}", span.kind, KINDS)
        check_int("rank of a span", span.rank, 0)
        try:
            ordered = -math.inf < span.start <= span.end < math.inf and math.isfinite(span.ready or 0.0)
        except TypeError:
            ordered = False
        if not ordered:
            raise InvalidArgument(f"time of {span.name}", (span.start, span.end), "finite, from start to a later end")
    return spans


def _check_window(window: tuple[float, float] | None, spans: tuple[Span, ...]) -> tuple[float, float]:
    if window is None:
        if not spans:
            raise InvalidArgument("window", window, "(start, end) where there are no spans")
        return min(span.start for span in spans), max(span.end for span in spans)
    try:
        start, end = map(float, window)
    except (TypeError, ValueError):
        raise InvalidArgument("window", window, "(start, end) in seconds") from None
    if not -math.inf < start <= end < math.inf:
        raise InvalidArgument("window", window, "(start, end) in seconds, the end not before the start")
    return start, end


def merge(timelines: Iterable[Timeline]) -> Timeline:
    """Return one timeline with all spans of several, such as one trace per rank. Its window covers all windows.

    Raises `InvalidArgument` if there are none, or two of them have the same rank.
    """
    timelines = list(timelines)
    if not timelines:
        raise InvalidArgument("timelines", timelines, "one or more")
    ranks: set[int] = set()
    for index, timeline in enumerate(timelines):
        if twice := ranks.intersection(timeline.ranks):
            expected = f"without rank {min(twice)}, which an earlier timeline has"
            raise InvalidArgument(f"timelines[{index}]", timeline, expected)
        ranks.update(timeline.ranks)
    window = min(t.start for t in timelines), max(t.end for t in timelines)
    return Timeline(tuple(span for t in timelines for span in t.spans), window)


def split_waits(timeline: Timeline) -> Timeline:
    """Split the span of each collective into waiting for peers and transfer, and return the new timeline.

    The n-th collectives of all ranks are taken to be the same one; until the last rank starts it, the others wait.
    The ranks' clocks must agree. Raises `InvalidArgument` for different numbers of communication spans.
    """
    calls = {
        r: sorted((s for s in timeline.spans if s.rank == r and s.kind == "communication"), key=attrgetter("start"))
        for r in timeline.ranks
    }
    counts = {rank: len(spans) for rank, spans in calls.items()}
    if len(set(counts.values())) > 1:
        raise InvalidArgument("timeline", counts, "a timeline with equally many collectives on every rank")
    spans = [span for span in timeline.spans if span.kind != "communication"]
    for together in zip(*calls.values(), strict=True):
        begun = max(span.start for span in together)
        for span in together:
            moved = min(begun, span.end)
            if moved > span.start:
                spans.append(span._replace(kind="wait", end=moved))
            spans.append(span._replace(start=moved))
    return Timeline(tuple(spans), timeline.window)
