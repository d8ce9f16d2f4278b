"""Checks of a recorded run, ordered so that causes stand before their consequences."""

from dpbook.runs.audit.checks import averaging, data, means, step
from dpbook.runs.audit.findings import Finding, RunCheck
from dpbook.runs.audit.journals import RunJournals

CHECKS: tuple[RunCheck, ...] = (
    averaging.group, averaging.start,
    data.examples, data.parts, data.epochs, data.batches, data.evaluation,
    means.losses, means.mean,
    averaging.unused, averaging.twice, averaging.sync, averaging.clip, averaging.scaled, averaging.scaler,
    averaging.gradients, averaging.rates, averaging.replicas, averaging.moves, averaging.buffers, averaging.overlap,
    step.random, step.scheduler, step.finite, step.gathered, step.collectives, step.devices, step.watching, step.end,
)  # fmt: skip


def check_findings(run: RunJournals) -> list[Finding]:
    """Return the findings of all checks that apply to a run."""
    results = [(check, check.judge(run)) for check in CHECKS]
    return [Finding(check.name, check.claim, result, check.book) for check, result in results if result is not None]
