"""Comparison of the findings about an exhibit with what it declares."""

from collections.abc import Iterator, Sequence

from dpbook.book.ch15.collection import Exhibit
from dpbook.book.ch15.exhibit_runs import OWN_PROCESSES, Lines, bad
from dpbook.runs.audit import Finding


def differences(exhibit: Exhibit, lines: Lines) -> list[str]:
    """Return in which points findings differ from an exhibit's declaration.

    The cause must come first, with its consequences under it, and nothing else may fire.
    """
    fired = bad(lines)
    if exhibit.status in ("", "PASS"):
        passing = {line.name: line.result.message for line in lines if line.result.status == "PASS"}
        as_declared = not exhibit.status or exhibit.says in passing.get(exhibit.check, "")
        return [f"{line.name} fires" for line in fired] + ([] if as_declared else [f"{exhibit.check} does not pass"])
    if not fired:
        return ["nothing fires"]
    cause, *consequences = fired
    return [*_cause_differences(exhibit, cause), *_consequence_differences(exhibit, consequences)]


def _cause_differences(exhibit: Exhibit, line: Finding) -> Iterator[str]:
    result = line.result
    if result.status != exhibit.status:
        yield f"{line.name} is {result.status}, not {exhibit.status}"
    if exhibit.says not in result.message:
        yield f"{line.name} does not say {exhibit.says!r}: {result.message}"
    if exhibit.tool in OWN_PROCESSES:
        if not result.message.startswith(exhibit.check):
            yield f"the launch does not begin with {exhibit.check!r}: {result.message}"
        return
    if line.name != exhibit.check or line.because:
        yield f"{line.name} is named first, not {exhibit.check}"
    if result.rank != exhibit.rank:
        yield f"rank {result.rank} is blamed, not {exhibit.rank}"
    if (result.place[2] if result.place else "") != exhibit.place:
        yield f"the line is {result.place}, not {exhibit.place}"


def _consequence_differences(exhibit: Exhibit, lines: Sequence[Finding]) -> Iterator[str]:
    for line in lines:
        if not line.because:
            yield f"{line.name} fires, and follows from nothing"
    if {line.name for line in lines} != set(exhibit.follows):
        yield f"under it stand {sorted(line.name for line in lines)}, not {sorted(exhibit.follows)}"
