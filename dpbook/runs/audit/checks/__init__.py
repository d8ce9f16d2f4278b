"""The checks of a run that was watched, in the order in which causes come before consequences."""

from dpbook.runs.audit.checks import averaging, counts, data, equality, step
from dpbook.runs.audit.checks.definition import Check
from dpbook.runs.audit.findings import Line
from dpbook.runs.audit.journals import Seen

CHECKS: tuple[Check, ...] = (
    averaging.group,
    equality.start,
    data.examples,
    data.parts,
    data.epochs,
    data.batches,
    data.evaluation,
    counts.mean,
    averaging.unused,
    averaging.twice,
    averaging.sync,
    averaging.clip,
    averaging.scaled,
    averaging.scaler,
    equality.gradients,
    equality.rates,
    equality.replicas,
    equality.buffers,
    averaging.overlap,
    step.random,
    step.scheduler,
    step.finite,
    step.gathered,
    step.collectives,
    step.devices,
    step.watching,
    step.end,
)


def watch_lines(seen: Seen) -> list[Line]:
    """What the checks say of a run."""
    return [line for check in CHECKS if (line := check.line(seen)) is not None]
