"""Sections of a page on a measured run: the parts of each rank, advice, timelines, and the step on more ranks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dpbook import figures
from dpbook.collectives import AlphaBeta
from dpbook.core import in_binary, in_words, milliseconds, plural
from dpbook.overlap import Timeline
from dpbook.runs.report.advice import LEAST_GAIN
from dpbook.runs.report.measured_run import MeasuredRun
from dpbook.runs.report.script_report import ScriptReport
from dpbook.runs.report.verdicts import largest_loss, not_forecast, not_simulated
from dpbook.runs.watching import PARTS

MOST_DRAWN = 7
"""Ranks whose timelines are drawn, beside the simulated one."""


class RankRow(NamedTuple):
    """Row of the table of ranks: each part is a name, the time in words, and the share of the longest step in %."""

    name: str
    slow: bool
    step: str
    memory: str
    parts: list[tuple[str, str, float]]


def measured_sections(report: ScriptReport) -> dict[str, Any]:
    """Return the values that the template of a page needs of a report; they are None if nothing was measured."""
    run = report.run
    if isinstance(run, str):
        return {"ranks": None, "advice": None, "timelines": None, "what_if": None}
    return {
        "ranks": list(_ranks(run)),
        "advice": _advice(report, run),
        "timelines": _timelines(report, run),
        "what_if": list(_what_if(report)) or None,
    }


def _ranks(run: MeasuredRun) -> Iterator[RankRow]:
    longest = float(run.parts["step"].max())
    for rank in range(run.world):
        seconds = {part: float(run.parts[part][rank]) for part in PARTS}
        cells = [(part, milliseconds(each), round(100 * max(each, 0.0) / longest, 2)) for part, each in seconds.items()]
        whole = milliseconds(float(run.parts["step"][rank]))
        yield RankRow(f"rank {rank}", rank == run.slow, whole, in_words(run.memory[rank], "B"), cells)


def _advice(report: ScriptReport, run: MeasuredRun) -> dict[str, Any]:
    """Return the rows of advice, and the note below them."""
    rows = [
        (each.change, f"{each.gain / run.step:.0%}", milliseconds(run.step - each.gain), each.source)
        for each in report.advice[0]
    ]
    note = f"Nothing that could be computed would save more than {LEAST_GAIN:.0%} of a step."
    reasons = report.advice[1]
    if run.world > 1 and (reason := not_forecast(run)) is not None:
        changes = "Other buckets" if isinstance(run.price_of_same_messages, AlphaBeta) else "Other buckets, no_sync"
        reasons = [*reasons, f"{changes} and more ranks: {reason}"]
    return {"rows": rows, "none": note, "not_measured": [each.replace(": ", ": not measured: ", 1) for each in reasons]}


def _timelines(report: ScriptReport, run: MeasuredRun) -> dict[str, Any]:
    """Return the picture of the update of median duration on each rank, above the simulated step."""
    measured = run.timeline
    drawn = {f"rank {rank}": _as_rank_0(measured, rank) for rank in measured.ranks[:MOST_DRAWN]}
    words, seconds = largest_loss(run)
    title = f"{milliseconds(seconds)} of {milliseconds(run.step)} are {words}"
    notes = []
    if len(measured.ranks) > MOST_DRAWN:
        notes.append(f"The first {MOST_DRAWN} of {len(measured.ranks)} ranks are drawn.")
    if report.inputs is not None and (simulated := report.simulated) is not None:
        drawn["simulated"] = simulated
        other = report.inputs[0].other
        whole = simulated.duration + other
        notes.append(
            f"The simulated step takes {milliseconds(whole)}, {whole / run.step - 1:+.0%} beside the measured one; "
            f"{milliseconds(other)} of it, outside of forward, backward and optimizer, are not drawn."
        )
    elif run.world > 1:
        notes.append(f"Simulated step: not measured: {not_simulated(run)}.")
    notes.append(
        "Each rank's time begins at the end of its previous update. Where nothing is computed or sent, it waits for "
        "the loader, or does what the table calls rest."
    )
    return {"picture": figures.draw_timelines(drawn, title), "notes": notes}


def _as_rank_0(timeline: Timeline, rank: int) -> Timeline:
    """Return the timeline of one rank under the number 0, as a picture shows the same rank of several timelines."""
    return Timeline(tuple(span._replace(rank=0) for span in timeline.of(rank).spans), timeline.window)


def _what_if(report: ScriptReport) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the forecast: ranks, step, exposed communication, speed-up, and the best buckets."""
    for row in report.what_if:
        cap = in_binary(row.cap) if row.cap else "as they are"
        now = "" if not row.cap or row.as_it_is is None else f" (as they are: {milliseconds(row.as_it_is)})"
        yield (
            plural(row.world, "rank"), milliseconds(row.step), milliseconds(row.exposed), f"{row.speedup:.2f}",
            cap + now,
        )  # fmt: skip
