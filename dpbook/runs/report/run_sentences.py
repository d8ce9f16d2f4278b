"""What a run's figures mean, in two or three sentences: is communication hidden, who waits for whom, what is lost."""

from collections.abc import Iterator

import numpy as np

from dpbook.core import milliseconds
from dpbook.runs.report.run_summary import LITTLE, WARM, Parts, Summary


def sentences(summary: Summary, alone: Summary | None) -> list[str]:
    """The verdict; none for a run that measured no parts and has nothing beside it."""
    if not summary.settled:
        return [f"Too short for a verdict: the first {WARM} steps allocate and settle the buckets; run {2 * WARM + 1}."]
    said = list(_communication(summary))
    if summary.world > 1 and alone is not None:
        said.append(_efficiency(summary, alone))
    return said


def _communication(summary: Summary) -> Iterator[str]:
    parts = summary.parts
    if summary.world == 1:
        yield "One process: nothing is communicated, and nobody waits."
    elif parts is not None:
        transfer = float(parts.transfer[0])
        of_step = f"{transfer / parts.step:.0%} of a step, {milliseconds(transfer)} of {milliseconds(parts.step)}"
        if transfer < LITTLE * parts.step:
            yield f"Communication costs little: what nothing hides of it is {of_step}."
        else:
            yield f"Communication is not hidden: {of_step}, is transfer during which nothing is computed."
        if _sends_weights(summary):
            updating = float(parts.updating.mean())
            share = f"{updating / parts.step:.0%} of a step ({milliseconds(updating)})"
            yield f"The update takes {share}; in it the ranks send each other the new weights, which nothing hides."
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
    if parts.wait < LITTLE:
        return "No rank is slow, and hardly any time goes to waiting."
    return f"Waiting for each other takes {waited}, though no rank alone is slow."


def _efficiency(summary: Summary, alone: Summary) -> str:
    """How far the run is from N times one process, and to what the difference goes."""
    said = (
        f"Efficiency is {summary.efficiency(alone):.0%}: a step takes {milliseconds(summary.seconds)}, "
        f"with one process alone {milliseconds(alone.seconds)}"
    )
    here, there = summary.parts, alone.parts
    if here is None or there is None or summary.efficiency(alone) > 1 - LITTLE:
        return f"{said}."
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
        (name for name in seconds if seconds[name] > LITTLE * here.step), key=seconds.__getitem__, reverse=True
    )
    causes = ", ".join(f"{name} ({milliseconds(seconds[name])})" for name in large)
    return f"{said}; the difference is {causes}." if causes else f"{said}."
