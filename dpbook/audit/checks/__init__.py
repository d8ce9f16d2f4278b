"""The checks of a run that was watched, in the order in which causes come before consequences."""

from dpbook.audit.checks import averaging, counts, course, data, replicas
from dpbook.audit.checks.check import Check
from dpbook.audit.lines import Line
from dpbook.audit.seen import Seen

CHECKS: tuple[Check, ...] = (
    replicas.start,
    data.examples,
    data.parts,
    data.epochs,
    data.batches,
    counts.mean,
    averaging.unused,
    averaging.sync,
    averaging.clip,
    averaging.scaled,
    averaging.scaler,
    replicas.gradients,
    replicas.rates,
    replicas.replicas,
    replicas.buffers,
    course.random,
    course.scheduler,
    course.finite,
    course.gathered,
    course.collectives,
    course.devices,
    course.end,
)


def watch_lines(seen: Seen) -> list[Line]:
    """What the checks say of a run."""
    return [line for check in CHECKS if (line := check.line(seen)) is not None]
