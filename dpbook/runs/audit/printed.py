"""A verdict as it is printed."""

from collections.abc import Sequence

from dpbook.core import plural
from dpbook.runs.audit.findings import Line

WIDTH = 66


def in_words(lines: Sequence[Line], updates: int, cost: float | None) -> str:
    """All lines, and a sum: how many causes, warnings and ``updates`` there were, and what watching cost."""
    told = [text for line in lines for text in _in_words(line)]
    if not updates:
        told.append(f"{'----':6}{'an update was seen':{WIDTH}}none: is it an optimizer of torch.optim that steps?")
    if not any(line.name.startswith("resume") for line in lines):
        told.append(f"{'----':6}{'a run that is ended goes on exactly':{WIDTH}}not tested: --resume says how")
    failed = [line for line in lines if line.failed and line.because is None]
    warned = sum(line.found.status == "WARN" for line in lines)
    seen = plural(updates, "update")
    sums = f"{plural(len(failed), 'cause')} of failure, {plural(warned, 'warning')}; {seen} seen"
    price = "" if cost is None else f"; watching cost {cost:.1%} of an update"
    return "\n".join([*told, f"{sums}{price}"])


def _in_words(line: Line) -> list[str]:
    found = line.found
    where = [
        f"rank {found.rank}" if found.rank is not None else "",
        found.tensor or "",
        f"update {found.update}" if found.update else "",
    ]
    indent = "  " if line.because else ""
    told = [f"{indent}{found.status:6}{line.claim:{WIDTH}}{found.told}"]
    if found.status in ("FAIL", "WARN"):
        follows = f"follows from: {line.because}" if line.because else ""
        at = f"{found.place[0]}:{found.place[1]}  {found.place[2]}" if found.place else ""
        more = [", ".join(filter(None, where)), follows, at, line.book]
        told.append(indent + " " * 6 + "   ".join(filter(None, more)))
    return told
