"""HTML pages of a training run (step times beside the prediction) and of an audit. Each is one file without scripts."""

import datetime
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpbook import figures
from dpbook.collectives import AlphaBeta, bandwidth_lower_bound
from dpbook.core import (
    DpbookError,
    InvalidArgument,
    in_binary,
    in_words,
    milliseconds,
    palette,
    plural,
    render_page,
    write_atomically,
)  # fmt: skip
from dpbook.overlap import Tensor, Timeline, read_profiles, split_waits
from dpbook.runs.audit import Verdict
from dpbook.runs.report.advice import LEAST_GAIN
from dpbook.runs.report.measured_run import MeasuredRun
from dpbook.runs.report.run_summary import WARMUP_STEPS, Summary, load_baseline, summarise
from dpbook.runs.report.script_report import DATA_FILE, ScriptReport, read_report
from dpbook.runs.report.verdicts import not_forecast, rows, sentences
from dpbook.runs.trainer import metrics
from dpbook.runs.watching import PARTS, number_of_journals

FILE = metrics.REPORT
MOST_DRAWN = 7
"""Ranks whose timelines are drawn, beside the simulated one."""


def write_script(report: ScriptReport, folder: Path) -> Path:
    """Write the page and the JSON of a script's report into ``folder``, and return the page's path."""
    run = report.run
    failed = [f"The run failed: {report.failure}."] if report.failure else []
    if isinstance(run, str):
        verdict, results = [f"Not measured: {run}."], []
    else:
        if failed:
            failed.append(f"It ended after {plural(run.total, 'update')}.")
        verdict = list(sentences(run, report.alone if isinstance(report.alone, MeasuredRun) else None))
        results = list(rows(run, report.alone))
    write_atomically(folder / DATA_FILE, (json.dumps(report.to_data(), indent=1) + "\n").encode())
    return _write_page(report, folder, verdict=failed + verdict, results=results, facts=_script_facts(report))


def _script_facts(report: ScriptReport) -> Iterator[tuple[str, str]]:
    yield "program", report.program
    run = report.run
    if not isinstance(run, str):
        trained = sum(Tensor(**tensor).elements for tensor in run.model["tensors"])
        yield "model", f"{trained:,} trained parameters in {plural(len(run.model['tensors']), 'tensor')}"
        yield "device", f"{run.model['name']}, {plural(report.world, 'rank')}"
        yield "updates", f"{run.total:,} made; {len(run.updates):,} count here"
    yield "versions", f"torch {version('torch')}, Python {platform.python_version()}"
    yield "date", str(datetime.date.today())


def _rewrite_script(folder: Path) -> Path:
    """Write the page of a script's report anew from the journals in its folder. Raises `DpbookError`."""
    if not (folder / DATA_FILE).is_file():  # another launcher has started the ranks
        return write_script(read_report(folder, [folder.name], number_of_journals(folder)), folder)
    try:
        data = json.loads((folder / DATA_FILE).read_text(encoding="utf-8"))
        program, world, failure = data["program"], int(data["world"]), data["failure"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DpbookError(f"{folder / DATA_FILE} is not the data of a report: {error}") from None
    return write_script(read_report(folder, [program], world, failure=failure), folder)


def write(folder: Path, baseline: Path | None = None) -> Path:
    """Write ``report.html`` into the ``folder`` of a run and return its path; an older report is replaced.

    ``baseline`` is the folder of the same training on one process, from which the report computes the scaling
    efficiency. By default it is the one that a launch measured, if there is one. The folder may also be that of a
    script's report. Raises `DpbookError`.
    """
    is_script = (folder / DATA_FILE).is_file() or number_of_journals(folder)
    if is_script and not (folder / metrics.DESCRIPTION).is_file() and baseline is None:
        return _rewrite_script(folder)
    summary, alone = _read(folder, baseline)
    prediction = summary.prediction
    link = AlphaBeta(prediction["alpha"], prediction["beta"]) if prediction and prediction["beta"] else None
    report = read_report(folder, [summary.about["options"]["name"]], summary.world, baseline=baseline, link=link)
    simulated = prediction["seconds"] if prediction else None
    return _write_page(
        report,
        folder,
        verdict=_verdict(summary, alone, report),
        results=_results(summary, alone),
        loss=figures.run_loss(summary.lines, "The loss of the whole batch, over all ranks"),
        seconds=figures.run_seconds(summary.counted, "Step times on rank 0", simulated),
        predicted=_predicted(summary, prediction) if prediction else None,
        traces=_traced(sorted(folder.glob("trace-rank*.json.gz")), summary.world),
        facts=_facts(summary.about),
    )


def _write_page(report: ScriptReport, folder: Path, **sections: Any) -> Path:
    """Write the page of a report with these ``sections`` and, if its run was measured, those of the run."""
    run = report.run
    if not isinstance(run, str):
        sections |= {"ranks": list(_ranks(run)), "advice": _advice(report, run)}
        sections |= {"timelines": _timelines(report, run), "what_if": list(_what_if(report))}
    write_atomically(folder / FILE, render_page(FILE, name=report.program, **sections).encode())
    return folder / FILE


def _ranks(run: MeasuredRun) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of ranks; of each part its name, its time, and its share of the longest step in %."""
    longest = float(run.parts["step"].max())
    for rank in range(run.world):
        seconds = {part: float(run.parts[part][rank]) for part in PARTS}
        cells = [(part, milliseconds(each), round(100 * max(each, 0.0) / longest, 2)) for part, each in seconds.items()]
        whole, memory = milliseconds(float(run.parts["step"][rank])), in_words(run.memory[rank], "B")
        yield {"name": f"rank {rank}", "slow": rank == run.slow, "step": whole, "memory": memory, "parts": cells}


def _advice(report: ScriptReport, run: MeasuredRun) -> dict[str, Any]:
    advice, reasons = report.advice
    rows = [
        (each.change, f"{each.gain / run.step:.0%}", milliseconds(run.step - each.gain), each.source) for each in advice
    ]
    if run.world > 1 and (reason := not_forecast(run)) is not None:
        changes = "Other buckets" if isinstance(run.price_of_same_messages, AlphaBeta) else "Other buckets, no_sync"
        reasons = [*reasons, f"{changes} and more ranks: {reason}"]
    notes = [each.replace(": ", ": not measured: ", 1) for each in reasons]
    return {"rows": rows, "least": f"{LEAST_GAIN:.0%}", "not_measured": notes}


def _timelines(report: ScriptReport, run: MeasuredRun) -> dict[str, Any]:
    """Return the picture of the update of median duration on each rank, above the simulated step."""
    measured = run.timeline
    drawn = {}
    for rank in measured.ranks[:MOST_DRAWN]:  # each to the end of its own update, as rank 0 of a timeline of its own
        spans = tuple(span._replace(rank=0) for span in measured.of(rank).spans)
        end = max((span.end for span in spans), default=measured.duration)
        drawn[f"rank {rank}"] = Timeline(spans, (0.0, end))
    title, notes = f"The update of median duration (median step: {milliseconds(run.step)})", []
    if len(measured.ranks) > MOST_DRAWN:
        notes.append(f"The first {MOST_DRAWN} of {len(measured.ranks)} ranks are drawn.")
    if not isinstance(report.inputs, str) and (simulated := report.simulated) is not None:
        drawn["simulated"] = simulated
        other = report.inputs[0].other
        whole = simulated.duration + other
        more = "more" if whole > run.step else "less"
        notes.append(
            f"The simulated step takes {milliseconds(whole)}: {milliseconds(simulated.duration)} that are drawn, and "
            f"{milliseconds(other)} outside of forward, backward and optimizer. That is "
            f"{abs(whole / run.step - 1):.0%} {more} than was measured."
        )
    elif run.world > 1:
        notes.append(f"Simulated step: not measured: {report.inputs}.")
    return {"picture": figures.draw_timelines(drawn, title), "notes": notes}


def _what_if(report: ScriptReport) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the forecast: ranks, step, exposed communication, speed-up, and the best buckets."""
    for row in report.what_if:
        cap = in_binary(row.cap) if row.cap else "as they are"
        if row.cap and row.as_it_is is not None:
            cap += f" (as they are: {milliseconds(row.as_it_is)})"
        yield plural(row.world, "rank"), milliseconds(row.step), milliseconds(row.exposed), f"{row.speedup:.2f}", cap


def _verdict(summary: Summary, alone: Summary | None, report: ScriptReport) -> list[str]:
    if not summary.settled:
        reason = f"the first {WARMUP_STEPS} steps allocate and settle the buckets"
        return [f"Too short for a verdict: {reason}; run {2 * WARMUP_STEPS + 1}."]
    if isinstance(report.run, str):
        return [f"Where the time of a step goes was not measured: {report.run}."]
    if alone is None or not isinstance(report.alone, MeasuredRun):
        return list(sentences(report.run, None))
    return list(sentences(report.run, report.alone, summary.efficiency(alone)))


def headline(folder: Path) -> str:
    """Return a run in one line: loss, throughput, and scaling efficiency if a launch measured a baseline."""
    summary, alone = _read(folder, None)
    figures_in_words = [f"loss {_loss(summary)}", _throughput(summary)]
    if alone is not None and summary.world > 1:
        figures_in_words.append(_efficiency(summary, alone))
    return "; ".join(figures_in_words)


def _read(folder: Path, baseline: Path | None) -> tuple[Summary, Summary | None]:
    summary = summarise(folder)
    alone = summarise(baseline) if baseline else load_baseline(folder, summary)
    return summary, alone if summary.settled else None  # the first steps of a run are slower, so no efficiency


def _loss(summary: Summary) -> str:
    return f"{summary.lines[-1]['loss']:.4f} after step {summary.lines[-1]['step']:,}"


def _throughput(summary: Summary) -> str:
    return f"{summary.tokens_per_second:,.0f} {summary.unit}/s over {plural(summary.world, 'rank')}"


def _efficiency(summary: Summary, alone: Summary) -> str:
    return f"{summary.efficiency(alone):.0%} of {summary.world} times one process"


def _results(summary: Summary, alone: Summary | None) -> Iterator[tuple[str, str]]:
    payload = float(summary.about["payload_bytes"])
    yield "loss", _loss(summary)
    quarters = " to ".join(map(milliseconds, np.percentile(summary.step_seconds, [25, 75])))
    yield "step", f"{milliseconds(summary.seconds)}, median of {len(summary.counted)} (half of the steps {quarters})"
    yield "throughput", _throughput(summary)
    if alone is not None:
        rate = f"{alone.tokens_per_second:,.0f} {summary.unit}/s"
        yield "one process alone", f"{rate}, {milliseconds(alone.seconds)} per step"
        whole = summary.efficiency(alone) * summary.seconds
        spread = _half(summary, "{:.0%}", lambda seconds: whole / seconds)
        yield "scaling efficiency", f"{_efficiency(summary, alone)} ({spread})"
    used = summary.model_flops_utilisation
    if used is None:
        yield "model FLOPs utilisation", "no peak known for this device and precision"
    else:
        spread = _half(summary, "{:.1%}", lambda seconds: used * summary.seconds / seconds)
        yield "model FLOPs utilisation", f"{used:.1%} of the bf16 peak ({spread})"
    counted = "" if summary.about["backend"] == "gloo" else ", by the allocator of torch"
    yield "peak memory", f"{in_words(max(line['memory'] for line in summary.lines), 'B')} on rank 0{counted}"
    yield "gradients averaged", f"{in_words(payload, 'B')} per step"
    yield "sent by each rank", f"{in_words(bandwidth_lower_bound(summary.world, payload), 'B')} per step, if by a ring"


def _half(summary: Summary, template: str, value: Callable[[float], float]) -> str:
    """Return the quartiles of the step times in words, each converted by ``value``."""
    least, most = sorted(value(seconds) for seconds in np.percentile(summary.step_seconds, [25, 75]))
    return f"half of the steps {template.format(least)} to {template.format(most)}"


def _predicted(summary: Summary, prediction: dict[str, Any]) -> Iterator[tuple[str, str]]:
    off = f"{prediction['seconds'] / summary.seconds - 1:+.0%} beside the measured one"
    spread = _half(summary, "{:+.0%}", lambda seconds: prediction["seconds"] / seconds - 1)
    yield "simulated step", f"{milliseconds(prediction['seconds'])}, {off} ({spread})"
    exposed, whole = milliseconds(prediction["exposed"]), milliseconds(prediction["communication"])
    yield "of it exposed", f"{exposed} of {whole} of communication"
    line = f"{in_words(prediction['alpha'], 's')} + {in_words(prediction['beta'], 's')}/B · n"
    yield "all-reduce, fitted", f"{line}, in {plural(prediction['calls'], 'call')} per step"


def _traced(paths: Sequence[Path], world: int) -> dict[str, Any] | None:
    """Return a text and, for up to 8 ranks, a picture of the traces; None if there are no traces."""
    if not paths:
        return None
    try:
        whole: Timeline = read_profiles(paths)
    except DpbookError as error:
        return {"text": f"The traces cannot be read: {error}"}
    try:
        timeline = split_waits(whole)
    except InvalidArgument:  # ranks whose traces begin in different steps
        timeline = whole
    exposed = f"{milliseconds(timeline.exposed())} of {milliseconds(timeline.busy('communication'))}"
    if timeline is whole or len(paths) < world:
        title = f"{exposed} of communication are exposed, waiting included"
    else:
        spent, waited = (milliseconds(seconds) for seconds in (whole.busy("communication"), timeline.busy("wait")))
        title = f"{waited} of {spent} in collectives are waiting; {exposed} of transfer are exposed"
    picture = figures.draw_ranks(timeline, title) if len(timeline.ranks) <= 8 else None
    return {"text": f"{title} (the mean over ranks). {timeline!r}", "picture": picture}


def _facts(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    options = about["options"]
    yield "model", f"{options['model']}, {about['parameters']:,} parameters, {about['trained']:,} trained"
    yield "strategy", f"{options['strategy']} on {plural(about['world'], 'rank')} over {about['backend']}"
    yield "device", f"{about['device']}, {plural(about['cores'], 'core')}"
    yield "versions", f"torch {about['torch']}, Python {about['python']}"
    yield "date", str(about["date"])
    yield "options", ", ".join(f"{key} {value}" for key, value in options.items())


_COLOURS = {"PASS": palette.PASS, "FAIL": palette.FAIL, "WARN": "#8a5a00", "----": "#666666"}


def audit_page(verdict: Verdict, program: str) -> str:
    """Return the page of an audit; all text that comes from the run is escaped."""
    rows = [(finding, _COLOURS[finding.result.status], " · ".join(finding.details)) for finding in verdict.findings]
    return render_page("audit.html", program=program, verdict=verdict, rows=rows)
