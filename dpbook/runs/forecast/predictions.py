"""Predictions: the step of a measured script on more ranks, simulated; as a printed table and as JSON."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpbook.core import check_int, in_binary, milliseconds, plural
from dpbook.overlap import (
    CAP,
    FIRST_CAP,
    ITEMSIZE,
    MIB,
    ROOT,
    CapSweep,
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
from dpbook.runs.forecast.links import Connection, domain_note
from dpbook.runs.forecast.measured_step import Measured, NoForecast

CAPS = tuple(int(MIB * 2**power * share) for power in range(-4, 12) for share in (1, 1.5))
"""Caps that are tried: 64 KiB to 3 GiB, two in every doubling."""
AS_GOOD = 1.01
"""A step that takes so many times the shortest is as good: what a call costs the host is in no price."""


@dataclass(frozen=True)
class Row:
    """``step`` and ``exposed`` (communication that nothing hides): seconds. ``speedup``: over one rank with its batch.

    Of stage 0, ``cap`` is the best bucket cap, in bytes, to which all of this belongs (0: the script's own), and
    ``as_it_is`` the step with the script's own; None of both in the other stages.
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
class Checked:
    """Seconds of a ``forecast`` step of the script as it is, and those that were ``measured``.

    ``exposed``: communication of the forecast that nothing hides. ``waited``: for what the step waited without the
    emulated link: near to ``exposed`` or above, the link is not slower than what is here, and the forecast too low.
    """

    link: str
    world: int
    forecast: float
    measured: float
    exposed: float = 0.0
    waited: float = 0.0

    @property
    def miss(self) -> float:
        """Relative: below 0 where the forecast was too low."""
        return self.forecast / self.measured - 1


def forecast(
    what: Measured, worlds: Sequence[int], links: Sequence[Connection], stages: Sequence[int] = (0,)
) -> tuple[Row, ...]:
    """Simulate the step of ``what`` on as many ranks over each link. Raises `InvalidArgument`."""
    for world in worlds:
        check_int("gpus", world, 2)
    for stage in stages:
        check_int("stages", stage, 0, 3)
    return tuple(_row(what, link, world, stage) for link in links for world in worlds for stage in stages)


def checked(what: Measured, link: Connection) -> Checked:
    """The script as it is, forecast for the ranks on which it ran, beside what was measured.

    Raises `NoForecast` where nothing was measured to compare with.
    """
    if what.held is None:
        raise NoForecast("nothing to compare with: torch's DDP as it is has to carry the gradients, in a few updates")
    step = _simulated(what, link, what.world, *_limits(what))
    return Checked(link.name, what.world, what.other + step.duration, what.held, step.exposed(), what.waited)


def _row(what: Measured, link: Connection, world: int, stage: int) -> Row:
    if stage:
        cap = as_it_is = None
        step = _sharded(what, link, world, stage)
    else:
        own = step = _simulated(what, link, world, *_limits(what))
        cap, as_it_is = 0, what.other + own.duration
        best = _best(what, link, world)
        if own.duration > AS_GOOD * best.duration:
            cap = int(best.caps[best.durations <= AS_GOOD * best.duration].max())
            step = _simulated(what, link, world, cap, cap)
    seconds = what.other + step.duration
    return Row(link.name, world, stage, seconds, step.exposed(), world * what.alone / seconds, cap, as_it_is)


def _limits(what: Measured) -> tuple[int, int]:
    """Of the script's buckets, and of its first one."""
    return (CAP, FIRST_CAP) if what.cap is None else (what.cap, what.cap)


def _simulated(what: Measured, link: Connection, world: int, cap: int, first: int) -> Timeline:
    buckets = plan(tensors_of(what.layers), cap, first)
    return simulate_step(
        what.layers, buckets, link.price(world), accumulation=what.accumulation, no_sync=what.no_sync,
        optimizer=what.after,
    )  # fmt: skip


def _best(what: Measured, link: Connection, world: int) -> CapSweep:
    """Steps with caps up to the first that puts everything into one bucket."""
    total = sum(tensor.nbytes for tensor in tensors_of(what.layers))
    caps = CAPS[: sum(cap < total for cap in CAPS) + 1]
    return best_cap(
        what.layers, link.price(world), caps, accumulation=what.accumulation, no_sync=what.no_sync,
        optimizer=what.after,
    )  # fmt: skip


def _sharded(what: Measured, link: Connection, world: int, stage: int) -> Timeline:
    how = Sharding(stage, world)
    size = ITEMSIZE[tensors_of(what.layers)[0].dtype]
    return simulate_sharded(
        list(_units(what)), how, Wires.rings(how, link.link), sizes=Sizes(size, size), accumulation=what.accumulation,
        optimizer=what.after,
    ).timeline  # fmt: skip


def _units(what: Measured) -> Iterator[Unit]:
    """The modules that are gathered as one, with what is frozen in them; first those of which nothing is trained."""
    inside: dict[str, int] = {}
    for name, number in (what.frozen or {}).items():
        home = _home(what.units, name)
        inside[home] = inside.get(home, 0) + number
    trained = [unit for unit in what.units if any(_home(what.units, layer.name) == unit for layer in what.layers)]
    partly = {name: number for name, number in inside.items() if name in (ROOT, *trained)}
    units = units_of(what.layers, trained, frozen=partly)
    yield from (unit for unit in units if unit.name == ROOT)
    yield from (Unit(name, 0.0, 0.0, number, number) for name, number in inside.items() if name not in partly)
    yield from (unit for unit in units if unit.name != ROOT)


def _home(units: Sequence[str], name: str) -> str:
    """The innermost unit around a parameter."""
    return max((unit for unit in units if name.startswith(f"{unit}.")), key=len, default=ROOT)


FORMAT = 1
Table = list[tuple[str, ...]]


def about(what: Measured) -> str:
    """What was measured, in one line."""
    parts = [f"{name} {milliseconds(seconds)}" for name, seconds in _parts(what).items()]
    nbytes = in_binary(sum(tensor.nbytes for layer in what.layers for tensor in layer.tensors))
    micro = f" in {what.accumulation} micro-batches" if what.accumulation > 1 else ""
    on = "one process" if what.world == 1 else f"{what.world} processes"
    return (
        f"from {plural(what.updates, 'update')} on {on}: {', '.join(parts)}{micro}; "
        f"{plural(len(what.layers), 'tensor')}, {nbytes}, ready order recorded"
    )


def _parts(what: Measured) -> dict[str, float]:
    return {"forward": what.forward, "backward": what.backward, "optimizer": what.after, "other": what.other}


def in_words(what: Measured, rows: Sequence[Row]) -> str:
    """A table of a forecast."""
    sharded = any(row.stage for row in rows)
    own = "default, 25 MiB" if what.cap is None else f"its own, {in_binary(what.cap)}"
    table: Table = [("link", "GPUs", *(["stage"] if sharded else []), "step", "exposed", "speed-up", "best cap")]
    for row in rows:
        cap = "–" if row.cap is None else own
        if row.cap and row.as_it_is is not None:
            cap = f"{in_binary(row.cap)} ({own}: {milliseconds(row.as_it_is)})"
        stage = [str(row.stage)] if sharded else []
        figures = milliseconds(row.step), milliseconds(row.exposed), f"{row.speedup:.2f}", cap
        table.append((row.link, str(row.world), *stage, *figures))
    return "\n".join([about(what), *_aligned(table), *_as_notes([*what.notes, *_link_notes(rows)])])


def check_in_words(runs: Sequence[tuple[Measured, Checked]]) -> str:
    """A table of forecasts beside what was measured."""
    table: Table = [("link", "ranks", "forecast", "measured", "miss", "exposed", "without the link")]
    for _, row in runs:
        miss = f"{abs(row.miss):.1%} too {'low' if row.miss < 0 else 'high'}"
        times = [milliseconds(each) for each in (row.forecast, row.measured, row.exposed, row.waited)]
        table.append((row.link, str(row.world), *times[:2], miss, *times[2:]))
    heads = [line for what, _ in runs for line in (about(what), *_as_notes(what.notes))]
    return "\n".join([*dict.fromkeys(heads), *_aligned(table)])


def as_json(what: Sequence[Measured], rows: Sequence[Row | Checked]) -> str:
    """All of it, for programs; seconds and bytes."""
    told = [
        {"updates": one.updates, "world": one.world, "accumulation": one.accumulation, "alone": one.alone,
         **_parts(one), "notes": one.notes, "layers": [asdict(layer) for layer in one.layers]}
        for one in what
    ]  # fmt: skip
    notes = _link_notes([row for row in rows if isinstance(row, Row)])
    return json.dumps(
        {"format": FORMAT, "measured": told, "rows": [_plain(row) for row in rows], "notes": notes}, indent=1
    )


def _plain(row: Row | Checked) -> dict[str, Any]:
    return asdict(row) | ({"miss": row.miss} if isinstance(row, Checked) else {})


def _aligned(table: Table) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _as_notes(notes: Iterable[str]) -> list[str]:
    return [f"note: {note}" for note in notes]


def _link_notes(rows: Sequence[Row]) -> list[str]:
    """Notes on links that cannot join as many GPUs as they are forecast for."""
    links = dict.fromkeys(row.link for row in rows)
    notes = (domain_note(link, [row.world for row in rows if row.link == link]) for link in links)
    return [note for note in notes if note]
