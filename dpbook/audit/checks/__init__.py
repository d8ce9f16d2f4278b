"""The checks of a run that was watched, in the order in which causes come before consequences."""

from dpbook.audit.checks import averaging, counts, course, data, equality, wrapper
from dpbook.audit.checks.definition import Check
from dpbook.audit.lines import Line
from dpbook.audit.side_by_side import Seen

CHECKS: tuple[Check, ...] = (
    wrapper.group,
    equality.start,
    data.examples,
    data.parts,
    data.epochs,
    data.batches,
    data.evaluation,
    counts.mean,
    averaging.unused,
    wrapper.twice,
    averaging.sync,
    averaging.clip,
    averaging.scaled,
    averaging.scaler,
    equality.gradients,
    equality.rates,
    equality.replicas,
    equality.buffers,
    wrapper.overlap,
    course.random,
    course.scheduler,
    course.finite,
    course.gathered,
    course.collectives,
    course.devices,
    course.watching,
    course.end,
)


def watch_lines(seen: Seen) -> list[Line]:
    """What the checks say of a run."""
    return [line for check in CHECKS if (line := check.line(seen)) is not None]
