"""A forecast as it is printed, and as JSON takes it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dpbook.core import in_binary, milliseconds, plural
from dpbook.runs.forecast.links import domain_note
from dpbook.runs.forecast.measured_step import Measured
from dpbook.runs.forecast.predictions import Checked, Row

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
