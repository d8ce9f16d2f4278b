"""Links, and simulated steps of a measured script on more ranks over them, as a printed table and as JSON."""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dpbook.collectives import AlphaBeta, Link, Topology, closed_forms, fit
from dpbook.core import InvalidArgument, aligned, check_int, in_binary, milliseconds, plural
from dpbook.overlap import (
    CAP,
    FIRST_CAP,
    ITEMSIZE,
    MIB,
    ROOT,
    CapSweep,
    Price,
    Sharding,
    Sizes,
    Timeline,
    Unit,
    Wires,
    best_cap,
    plan,
    simulate_sharded,
    simulate_step,
    tensors_of,
    units_of,
)
from dpbook.planning import LINKS
from dpbook.ranks import Sweep
from dpbook.runs.forecast.measured_step import MeasuredStep, NoForecast

SHORT_NAMES = {
    "1GbE": "Ethernet 1 Gb/s",
    "25GbE": "Ethernet 25 Gb/s",
    "100GbE": "Ethernet 100 Gb/s",
    "HDR": "InfiniBand HDR 200 Gb/s",
    "NDR": "InfiniBand NDR 400 Gb/s",
    "XDR": "InfiniBand XDR 800 Gb/s",
    "PCIe4": "PCIe 4.0 x16",
    "NVLink3": "NVLink 3",
    "NVLink4": "NVLink 4",
    "NVLink5": "NVLink 5",
}
"""Short names for the command line, and the links of `planning.LINKS` that they stand for."""
NVLINK_DOMAINS = {"NVLink3": (8, "a DGX A100"), "NVLink4": (8, "a DGX H100"), "NVLink5": (72, "a GB200 NVL72")}
"""GPUs that NVLink joins in NVIDIA's usual systems, by its short name; between these systems there is a network."""
RATE = re.compile(r"(\d+(?:\.\d+)?)([MG])(b|B)/s(?:\+(\d+(?:\.\d+)?)us)?")
"""Rate such as 500Mb/s or 12GB/s+5us: bits or bytes per second in one direction, and a latency."""
NODES = re.compile(r"(\d+)x(.+?)\+((?![\d.]+us).+)")
"""Nodes such as 8xNVLink4+NDR: the GPUs of a node, their link, and that of each GPU's port to the other nodes."""


@dataclass(frozen=True)
class Connection:
    """The links between ranks.

    Attributes:
        name: as the user wrote it.
        link: the link between any two ranks; with nodes, between ranks of two nodes. Every rank has one port.
        fits: fits of all-reduces that were measured, by world size.
        inside: the link between two ranks of a node; None if there are no nodes.
        per_node: ranks of a node.
    """

    name: str
    link: Link
    fits: Mapping[int, AlphaBeta] = field(default_factory=dict)
    inside: Link | None = None
    per_node: int = 1

    def ring(self, world: int) -> AlphaBeta:
        """Return the price of a ring all-reduce, over nodes of one ring per port. Raises `InvalidArgument`."""
        if self.inside is None:
            return closed_forms.ring(world, self.link)
        if world <= self.per_node:
            return closed_forms.ring(world, self.inside)
        nodes, more = divmod(world, self.per_node)
        if more:
            raise InvalidArgument("gpus", world, f"at most {self.per_node}, or a multiple of it: {self.name} has nodes")
        topology = Topology(nodes, self.per_node, self.inside, self.link)
        return closed_forms.ring_without_rounds(nodes, self.per_node, topology)

    def price(self, world: int) -> AlphaBeta:
        """Return the price of an all-reduce: the measured one if there is one, else that of a ring."""
        return self.fits.get(world) or self.ring(world)


def connection(text: str) -> Connection:
    """Return the links of a short name (in any case), a rate or nodes. Raises `InvalidArgument`, `UnitsError`."""
    if nodes := NODES.fullmatch(text):
        inside, between = connection(nodes[2]), connection(nodes[3])
        joined, system = NVLINK_DOMAINS.get(inside.name, (int(nodes[1]), ""))
        if not 2 <= int(nodes[1]) <= joined:
            most = f" to {joined}, the GPUs that {inside.name} joins ({system})" if system else " GPUs or more"
            raise InvalidArgument("link", text, f"nodes of 2{most}")
        name = f"{nodes[1]}x{inside.name}+{between.name}"
        return Connection(name, between.link, inside=inside.link, per_node=int(nodes[1]))
    for short, name in SHORT_NAMES.items():
        if text.lower() in (short.lower(), name.lower()):
            return Connection(short, LINKS[name])
    if not (rate := RATE.fullmatch(text)):
        known = ", ".join(SHORT_NAMES)
        expected = f"one of {known}, a rate such as 10Gb/s, 500Mb/s+50us or 12GB/s, or nodes such as 8xNVLink4+NDR"
        raise InvalidArgument("link", text, expected)
    number = float(rate[1]) / (1000 if rate[2] == "M" else 1)
    make = Link.gigabits if rate[3] == "b" else Link.gigabytes
    return Connection(text, make(number, latency=float(rate[4] or 0) * 1e-6))


def fit_connection(sweep: Sweep) -> Connection:
    """Fit a line to the all-reduces of this machine; the link is that of a ring which would take as long.

    Raises `InvalidArgument` for a sweep of one rank.
    """
    if sweep.world < 2:
        raise InvalidArgument("sweep", sweep.world, "one of two ranks or more")
    return fitted_connection(sweep.world, fit(sweep.nbytes, sweep.seconds).model)


def fitted_connection(world: int, line: AlphaBeta) -> Connection:
    """Return the link of a ring that takes as long as the all-reduces which were measured between ``world`` ranks."""
    hops, share = 2 * (world - 1), 2 * (world - 1) / world
    link = Link(line.alpha / hops, share * line.bandwidth)
    return Connection(f"here, {plural(world, 'rank')}", link, {world: line})


CAPS = tuple(int(MIB * 2**power * share) for power in range(-4, 12) for share in (1, 1.5))
"""Bucket caps that are tried: 64 KiB to 3 GiB, two in every doubling."""
EQUIVALENT_RATIO = 1.01
"""Ratio to the shortest step up to which a step counts as equally good: no price has the host's cost of a call."""


@dataclass(frozen=True)
class ForecastRow:
    """Forecast of a step in seconds, for one link, number of ranks and sharding stage.

    Attributes:
        exposed: communication that no computation hides.
        speedup: throughput relative to one rank.
        cap: best bucket cap in bytes, which the other fields assume (0: the script's own); None unless the stage is 0.
        as_it_is: step with the script's own cap; None unless the stage is 0.
    """

    link: str
    world: int
    stage: int
    step: float
    exposed: float
    speedup: float
    cap: int | None = None
    as_it_is: float | None = None


@dataclass(frozen=True)
class ForecastCheck:
    """Forecast and measured seconds of a step of the unmodified script, over an emulated link.

    Attributes:
        exposed: communication in the forecast that no computation hides.
        waited: time for which a step waited without the emulated link. If it is close to ``exposed`` or above it, the
            link is no slower than the real one, and the forecast is too low.
    """

    link: str
    world: int
    forecast: float
    measured: float
    exposed: float = 0.0
    waited: float = 0.0

    @property
    def miss(self) -> float:
        """Relative error of the forecast; negative if it is too low."""
        return self.forecast / self.measured - 1


def forecast(
    measured: MeasuredStep, worlds: Sequence[int], links: Sequence[Connection], stages: Sequence[int] = (0,)
) -> tuple[ForecastRow, ...]:
    """Simulate the measured step for every link, world size and stage. Raises `InvalidArgument`."""
    for world in worlds:
        check_int("gpus", world, 2)
    for stage in stages:
        check_int("stages", stage, 0, 3)
    return tuple(_row(measured, link, world, stage) for link in links for world in worlds for stage in stages)


def check_forecast(measured: MeasuredStep, link: Connection) -> ForecastCheck:
    """Compare the forecast for the ranks on which the script ran with its measured updates over the link.

    Raises `NoForecast` if no update over the link was measured.
    """
    if measured.emulated_seconds is None:
        reason = "the script must make some updates with torch's DDP and no hook of its own"
        raise NoForecast(f"nothing to compare with: {reason}")
    step = simulate_buckets(measured, link.price(measured.world), *bucket_limits(measured))
    seconds = measured.other + step.duration
    return ForecastCheck(link.name, measured.world, seconds, measured.emulated_seconds, step.exposed(), measured.waited)


def _row(whole: MeasuredStep, link: Connection, world: int, stage: int) -> ForecastRow:
    measured, price = whole.on(world), link.price(world)
    if stage:
        cap = as_it_is = None
        step = _sharded(measured, link, world, stage)
    else:
        step = simulate_buckets(measured, price, *bucket_limits(measured))
        cap, as_it_is = 0, measured.other + step.duration
        good = largest_good_cap(sweep_caps(measured, price))
        other = simulate_buckets(measured, price, good, good)
        if as_it_is > EQUIVALENT_RATIO * (measured.other + other.duration):
            cap, step = good, other
    seconds = measured.other + step.duration
    batches = 1 if whole.divided else world  # of the measured size, in a step
    return ForecastRow(link.name, world, stage, seconds, step.exposed(), batches * whole.alone / seconds, cap, as_it_is)


def largest_good_cap(sweep: CapSweep) -> int:
    """Return the largest cap in bytes whose step is as good as the shortest."""
    return int(sweep.caps[sweep.durations <= EQUIVALENT_RATIO * sweep.duration].max())


def bucket_limits(measured: MeasuredStep) -> tuple[int, int]:
    """Return the caps of the script's buckets and of its first bucket, in bytes."""
    return (CAP, FIRST_CAP) if measured.cap is None else (measured.cap, measured.first or measured.cap)


def simulate_buckets(measured: MeasuredStep, price: Price, cap: int, first: int, contention: float = 1.0) -> Timeline:
    """Simulate the measured step, without its ``other`` time, with buckets of these caps in bytes."""
    buckets = plan(tensors_of(measured.layers), cap, first)
    return simulate_step(measured.layers, buckets, price, contention=contention, **_options(measured))


def sweep_caps(measured: MeasuredStep, price: Price, contention: float = 1.0) -> CapSweep:
    """Sweep the caps up to the first one that puts all gradients into one bucket."""
    total = sum(tensor.nbytes for tensor in tensors_of(measured.layers))
    caps = CAPS[: bisect_left(CAPS, total) + 1]
    return best_cap(measured.layers, price, caps, contention=contention, **_options(measured))


def _options(measured: MeasuredStep) -> dict[str, Any]:
    return {"accumulation": measured.accumulation, "no_sync": measured.no_sync, "optimizer": measured.after}


def _sharded(measured: MeasuredStep, link: Connection, world: int, stage: int) -> Timeline:
    size, ring = ITEMSIZE[tensors_of(measured.layers)[0].dtype], link.ring(world)
    half = AlphaBeta(ring.alpha / 2, ring.beta / 2)  # of a reduce-scatter, and of an all-gather
    return simulate_sharded(
        list(_units(measured)), Sharding(stage, world), Wires(half, half, ring), sizes=Sizes(size, size),
        accumulation=measured.accumulation, optimizer=measured.after,
    ).timeline  # fmt: skip


def _units(measured: MeasuredStep) -> Iterator[Unit]:
    """Yield the root, the units without trained parameters, and the other units, with their frozen parameters."""

    def home(name: str) -> str:
        """Return the innermost unit that contains a parameter."""
        return max((unit for unit in measured.units if name.startswith(f"{unit}.")), key=len, default=ROOT)

    frozen: Counter[str] = Counter()
    for name, number in (measured.frozen or {}).items():
        frozen[home(name)] += number
    homes = {home(layer.name) for layer in measured.layers}
    trained = [unit for unit in measured.units if unit in homes]
    partly = {name: number for name, number in frozen.items() if name in (ROOT, *trained)}
    units = units_of(measured.layers, trained, frozen=partly)
    yield from (unit for unit in units if unit.name == ROOT)
    yield from (Unit(name, 0.0, 0.0, number, number) for name, number in frozen.items() if name not in partly)
    yield from (unit for unit in units if unit.name != ROOT)


FORMAT = 1
"""Version of the JSON form."""
HIDDEN_SHARE = 0.05
"""Share of a step below which a link exposes too little for a check to say anything about it."""
Table = list[tuple[str, ...]]


def summary(measured: MeasuredStep) -> str:
    """Return the measured step in one line."""
    parts = [f"{name} {milliseconds(seconds)}" for name, seconds in measured.parts.items()]
    nbytes = in_binary(sum(tensor.nbytes for tensor in tensors_of(measured.layers)))
    micro = f" in {measured.accumulation} micro-batches" if measured.accumulation > 1 else ""
    micro += ", which the script divides among its ranks" if measured.divided else ""
    on = "one process" if measured.world == 1 else f"{measured.world} processes"
    return (
        f"from {plural(measured.updates, 'update')} on {on}: {', '.join(parts)}{micro}; "
        f"{plural(len(measured.layers), 'tensor')}, {nbytes}, ready order recorded"
    )


def format_forecast(measured: MeasuredStep, rows: Sequence[ForecastRow]) -> str:
    """Return the table of a forecast."""
    sharded = any(row.stage for row in rows)
    script_cap = "default, 25 MiB" if measured.cap is None else f"its own, {in_binary(measured.cap)}"
    table: Table = [("link", "GPUs", *(["stage"] if sharded else []), "step", "exposed", "speed-up", "best cap")]
    for row in rows:
        cap = "–" if row.cap is None else script_cap
        if row.cap and row.as_it_is is not None:
            cap = f"{in_binary(row.cap)} ({script_cap}: {milliseconds(row.as_it_is)})"
        stage = [str(row.stage)] if sharded else []
        figures = milliseconds(row.step), milliseconds(row.exposed), f"{row.speedup:.2f}", cap
        table.append((row.link, str(row.world), *stage, *figures))
    notes = [f"note: {note}" for note in (*measured.notes, *_row_notes(rows))]
    return "\n".join([summary(measured), *aligned(table, 3), *notes])


def format_checks(runs: Sequence[tuple[MeasuredStep, ForecastCheck]]) -> str:
    """Return the table of forecasts beside measured steps."""
    table: Table = [("link", "ranks", "forecast", "measured", "miss", "exposed", "without the link")]
    for _, row in runs:
        miss = f"{abs(row.miss):.1%} too {'low' if row.miss < 0 else 'high'}"
        times = [milliseconds(seconds) for seconds in (row.forecast, row.measured, row.exposed, row.waited)]
        table.append((row.link, str(row.world), *times[:2], miss, *times[2:]))
    heads = [line for step, _ in runs for line in (summary(step), *(f"note: {note}" for note in step.notes))]
    notes = [
        f"note: {row.link} on {row.world} ranks exposes {milliseconds(row.exposed)} of {milliseconds(row.forecast)}, "
        "so this checks the computation and not the link: take a slower one, such as --link 500Mb/s+500us"
        for _, row in runs
        if row.exposed < max(row.waited, HIDDEN_SHARE * row.forecast)
    ]
    return "\n".join([*dict.fromkeys(heads), *aligned(table, 3), *notes])


def as_json(steps: Sequence[MeasuredStep], rows: Sequence[ForecastRow | ForecastCheck]) -> str:
    """Return measured steps and forecasts as JSON, for programs, in seconds and bytes."""
    plain_steps = [
        {"updates": one.updates, "world": one.world, "accumulation": one.accumulation, "alone": one.alone,
         "divided": one.divided, **one.parts, "notes": one.notes, "layers": [asdict(layer) for layer in one.layers]}
        for one in steps
    ]  # fmt: skip
    plain_rows = [asdict(row) | ({"miss": row.miss} if isinstance(row, ForecastCheck) else {}) for row in rows]
    notes = _row_notes([row for row in rows if isinstance(row, ForecastRow)])
    return json.dumps({"format": FORMAT, "measured": plain_steps, "rows": plain_rows, "notes": notes}, indent=1)


def _row_notes(rows: Sequence[ForecastRow]) -> list[str]:
    """Return notes on links that cannot join as many GPUs as were asked for, and on speed-ups that need a reason."""
    notes = []
    for name in dict.fromkeys(row.link for row in rows if row.link in NVLINK_DOMAINS):
        joined, system = NVLINK_DOMAINS[name]
        larger = sorted({row.world for row in rows if row.link == name and row.world > joined})
        if larger:
            notes.append(
                f"{name} joins {joined} GPUs ({system}), so the step on {' and on '.join(map(str, larger))} GPUs is "
                "too short: a network carries gradients between nodes. Give --link the nodes, such as "
                f"{joined}x{name}+NDR"
            )
    if any(row.stage and row.speedup > row.world for row in rows):
        notes.append("a speed-up above the number of GPUs: from stage 1 on, a rank updates only its shard of the model")
    return notes
