"""HTML pages of a training run (step times beside the prediction) and of an audit. Each is one file without scripts."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpbook import figures
from dpbook.collectives import bandwidth_lower_bound
from dpbook.core import (
    DpbookError,
    InvalidArgument,
    in_words,
    milliseconds,
    palette,
    plural,
    render_page,
    write_atomically,
)
from dpbook.overlap import Timeline, read_profiles, split_waits
from dpbook.runs.audit import Verdict
from dpbook.runs.report.run_summary import SMALL_SHARE, WARMUP_STEPS, Parts, Summary, load_baseline, summarise
from dpbook.runs.trainer import metrics


def sentences(summary: Summary, alone: Summary | None) -> list[str]:
    """Return the sentences of the verdict; an empty list for a run without measured parts and without a baseline."""
    if not summary.settled:
        return [
            f"Too short for a verdict: the first {WARMUP_STEPS} steps allocate and settle the buckets; "
            f"run {2 * WARMUP_STEPS + 1}."
        ]
    verdict = list(_communication(summary))
    if summary.world > 1 and alone is not None:
        verdict.append(_efficiency_sentence(summary, alone))
    return verdict


def _communication(summary: Summary) -> Iterator[str]:
    parts = summary.parts
    if summary.world == 1:
        yield "One process: no communication and no waiting."
    elif parts is not None:
        transfer = float(parts.transfer[0])
        of_step = f"{transfer / parts.step:.0%} of a step, {milliseconds(transfer)} of {milliseconds(parts.step)}"
        if transfer < SMALL_SHARE * parts.step:
            yield f"Communication costs little: exposed communication takes {of_step}."
        else:
            yield f"Communication is not hidden: {of_step}, is transfer during which nothing is computed."
        if _sends_weights(summary):
            updating = float(parts.updating.mean())
            share = f"{updating / parts.step:.0%} of a step ({milliseconds(updating)})"
            yield f"The update takes {share}; in it the ranks send each other the new weights, which is not hidden."
        yield _waiting(parts)


def _sends_weights(summary: Summary) -> bool:
    return bool(summary.about["options"]["strategy"] == "zero1")


def _waiting(parts: Parts) -> str:
    waited = f"{parts.wait:.0%} of a step ({milliseconds(float(parts.waiting.mean()))}, the mean over ranks)"
    if parts.slow is not None:
        slow, others = parts.computing[parts.slow], np.delete(parts.computing, parts.slow)
        return (
            f"Rank {parts.slow} is slower: it computes for {milliseconds(slow)} where the others need "
            f"{milliseconds(float(np.median(others)))}, and waiting takes {waited}."
        )
    if parts.wait < SMALL_SHARE:
        return "No rank is slow, and hardly any time is spent waiting."
    return f"Waiting for each other takes {waited}, though no single rank is slow."


def _efficiency_sentence(summary: Summary, alone: Summary) -> str:
    """Return the scaling efficiency in words, and the causes of the difference to N times one process."""
    text = (
        f"Efficiency is {summary.efficiency(alone):.0%}: a step takes {milliseconds(summary.seconds)}, "
        f"with one process alone {milliseconds(alone.seconds)}"
    )
    here, there = summary.parts, alone.parts
    if here is None or there is None or summary.efficiency(alone) > 1 - SMALL_SHARE:
        return f"{text}."
    lost = {
        "slower computing": here.computing - there.computing,
        "waiting": here.waiting,
        "transfer": here.transfer - there.transfer,
        "the update, in which weights are sent" if _sends_weights(summary) else "a slower update": here.updating
        - there.updating,
        "the exchange of the loss, and waiting for it": here.rest - there.rest,
    }
    seconds = {name: float(each.mean()) for name, each in lost.items()}
    large = sorted(
        (name for name in seconds if seconds[name] > SMALL_SHARE * here.step), key=seconds.__getitem__, reverse=True
    )
    causes = ", ".join(f"{name} ({milliseconds(seconds[name])})" for name in large)
    return f"{text}; the difference is {causes}." if causes else f"{text}."


FILE = metrics.REPORT
SHOWN = ("computing", "waiting", "transfer", "updating", "rest")


def write(folder: Path, baseline: Path | None = None) -> Path:
    """Write ``report.html`` into the ``folder`` of a run and return its path; an older report is replaced.

    ``baseline`` is the folder of the same training on one process, from which the report computes the scaling
    efficiency. By default it is the one that a launch measured, if there is one. Raises `DpbookError`.
    """
    summary, alone = _read(folder, baseline)
    prediction = summary.prediction
    page = render_page(
        FILE,
        name=summary.about["options"]["name"],
        verdict=sentences(summary, alone),
        results=_results(summary, alone),
        ranks=list(_ranks(summary.parts)) if summary.parts else None,
        loss=figures.run_loss(summary.lines, "The loss of the whole batch, over all ranks"),
        seconds=figures.run_seconds(
            summary.counted, "Step times on rank 0", prediction["seconds"] if prediction else None
        ),
        predicted=_predicted(summary, prediction) if prediction else None,
        traces=_traced(sorted(folder.glob("trace-rank*.json.gz")), summary.world),
        facts=_facts(summary.about),
    )
    write_atomically(folder / FILE, page.encode())
    return folder / FILE


def headline(folder: Path) -> str:
    """Return a run in one line: loss, throughput, and scaling efficiency if a launch measured a baseline."""
    summary, alone = _read(folder, None)
    figures_in_words = [_loss(summary), _throughput(summary)]
    if alone is not None and summary.world > 1:
        figures_in_words.append(_efficiency(summary, alone))
    return "; ".join(figures_in_words)


def _read(folder: Path, baseline: Path | None) -> tuple[Summary, Summary | None]:
    summary = summarise(folder)
    alone = summarise(baseline) if baseline else load_baseline(folder, summary)
    return summary, alone if summary.settled else None  # the first steps of a run are slower, so no efficiency


def _loss(summary: Summary) -> str:
    last = summary.lines[-1]
    return f"loss {last['loss']:.4f} after step {last['step']:,}"


def _throughput(summary: Summary) -> str:
    return f"{summary.tokens_per_second:,.0f} {summary.unit}/s over {plural(summary.world, 'rank')}"


def _efficiency(summary: Summary, alone: Summary) -> str:
    return f"{summary.efficiency(alone):.0%} of {summary.world} times one process"


def _results(summary: Summary, alone: Summary | None) -> Iterator[tuple[str, str]]:
    payload = float(summary.about["payload_bytes"])
    yield "loss", _loss(summary).removeprefix("loss ")
    quarters = " to ".join(map(milliseconds, np.percentile(summary.step_seconds, [25, 75])))
    yield "step", f"{milliseconds(summary.seconds)}, median of {len(summary.counted)} (half of the steps {quarters})"
    yield "throughput", _throughput(summary)
    if alone is not None:
        rate = f"{alone.tokens_per_second:,.0f} {summary.unit}/s"
        yield "one process alone", f"{rate}, {milliseconds(alone.seconds)} per step"
        whole = summary.efficiency(alone) * summary.seconds
        spread = _half(summary, "{:.0%}", lambda seconds: whole / seconds)
        yield "scaling efficiency", f"{_efficiency(summary, alone)} ({spread})"
    yield "model FLOPs utilisation", _utilisation(summary)
    counted = "" if summary.about["backend"] == "gloo" else ", by the allocator of torch"
    yield "peak memory", f"{in_words(max(line['memory'] for line in summary.lines), 'B')} on rank 0{counted}"
    yield "gradients averaged", f"{in_words(payload, 'B')} per step"
    yield "sent by each rank", f"{in_words(bandwidth_lower_bound(summary.world, payload), 'B')} per step, if by a ring"


def _half(summary: Summary, template: str, value: Callable[[float], float]) -> str:
    """Return the quartiles of the step times in words, each converted by ``value``."""
    least, most = sorted(value(seconds) for seconds in np.percentile(summary.step_seconds, [25, 75]))
    return f"half of the steps {template.format(least)} to {template.format(most)}"


def _utilisation(summary: Summary) -> str:
    used = summary.model_flops_utilisation
    if used is None:
        return "no peak known for this device and precision"
    spread = _half(summary, "{:.1%}", lambda seconds: used * summary.seconds / seconds)
    return f"{used:.1%} of the bf16 peak ({spread})"


class _Rank(NamedTuple):
    """Row of the table of ranks: each part is a name, the time in words, and the share of the longest bar in %."""

    name: str
    slow: bool
    parts: list[tuple[str, str, float]]


def _ranks(parts: Parts) -> Iterator[_Rank]:
    table = np.array([getattr(parts, name) for name in SHOWN])
    for rank, seconds in enumerate(table.T):
        shares = 100 * seconds / table.sum(axis=0).max()
        cells = list(zip(SHOWN, map(milliseconds, seconds), shares.round(2), strict=True))
        yield _Rank(f"rank {rank}", rank == parts.slow, cells)


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
