"""Checks of an audit (a claim and the function that tests it), their findings, and the report that prints them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from dpbook.core import plural
from dpbook.runs.audit.journals import RunJournals

Status: TypeAlias = Literal["PASS", "FAIL", "WARN", "----"]
"""``"----"`` means not tested; the message then says why."""
CLAIM_WIDTH = 66
"""Columns of a claim in the report."""
NO_UPDATE = "is it an optimizer of torch.optim that steps, and in the process that was launched?"
"""Question to a script that ended without an update."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        status: verdict of the check.
        message: the evidence in words, with its number.
        rank, tensor, update: where the fault first occurred, as far as these are known.
        place: line of the script, as [file, line, text].
    """

    status: Status
    message: str
    rank: int | None = None
    tensor: str | None = None
    update: int | None = None
    place: list[Any] | None = None


@dataclass(frozen=True)
class Finding:
    """Result of the check ``name`` together with the claim that it tested.

    Attributes:
        name: name of the check, for programs.
        claim: statement about the run that the check tested.
        result: what the check returned.
        book: chapter that explains the claim.
        because: name of the failed check that explains this failure, or None.
    """

    name: str
    claim: str
    result: CheckResult
    book: str = ""
    because: str | None = None

    @property
    def failed(self) -> bool:
        """Whether this finding says that the run is wrong."""
        return self.result.status == "FAIL"

    @property
    def details(self) -> list[str]:
        """First occurrence of the fault, the cause that it follows from, the line of the script, and the chapter."""
        result, line = self.result, self.result.place
        where = [f"rank {result.rank}" if result.rank is not None else "", result.tensor or ""]
        where += [f"update {result.update}" if result.update else ""]
        texts = [
            ", ".join(filter(None, where)),
            f"follows from: {self.because}" if self.because else "",
            f"{line[0]}:{line[1]}  {line[2]}" if line else "",
            self.book if result.status in ("FAIL", "WARN") else "",
        ]
        return list(filter(None, texts))

    def as_json(self) -> dict[str, Any]:
        """Return the finding as one flat dictionary of plain data."""
        fields: dict[str, Any] = asdict(self)
        result: dict[str, Any] = fields.pop("result")
        return fields | result


def passed(message: str) -> CheckResult:
    """Return the result of a claim that holds in everything that was recorded."""
    return CheckResult("PASS", message)


def untested(reason: str) -> CheckResult:
    """Return the result of a claim that could not be tested."""
    return CheckResult("----", f"not tested: {reason}")


def link_causes(findings: Iterable[Finding], causes: dict[str, tuple[str, ...]]) -> list[Finding]:
    """Name the cause of each failure that follows from another one, and sort the findings.

    Args:
        findings: findings in any order.
        causes: for the name of a check, the names of the checks whose failure may explain its own.
    """
    findings = list(findings)
    failed = {finding.name for finding in findings if finding.failed}
    warned = {finding.name for finding in findings if finding.result.status == "WARN"}

    def cause(finding: Finding) -> str | None:
        possible = failed if finding.failed else failed | warned if finding.result.status == "WARN" else set()
        return next((name for name in causes.get(finding.name, ()) if name in possible), None)

    return sort_findings(replace(finding, because=cause(finding)) for finding in findings)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: causes of failure, their consequences, warnings, passes, claims that were not tested."""
    return sorted(findings, key=_severity)


def _severity(finding: Finding) -> int:
    if finding.failed:
        return 0 if finding.because is None else 1
    return {"WARN": 2, "PASS": 3, "----": 4}[finding.result.status]


def format_findings(findings: Sequence[Finding], updates: int, cost: float | None) -> str:
    """Return the report: one or two lines for each finding, and a summary line.

    Args:
        findings: sorted findings.
        updates: number of updates that were recorded.
        cost: share of an update that watching took, or None if it is not known.
    """
    report = [text for finding in findings for text in _finding_lines(finding)]
    if not updates:
        failed_first = any(finding.name == "end" and finding.failed for finding in findings)
        reason = "the run failed before one" if failed_first else NO_UPDATE
        report.append(f"{'----':6}{'an update was seen':{CLAIM_WIDTH}}none: {reason}")
    if not any(finding.name.startswith("resume") for finding in findings):
        report.append(f"{'----':6}{'a stopped run resumes exactly':{CLAIM_WIDTH}}not tested: --resume says how")
    failed = [finding for finding in findings if finding.failed and finding.because is None]
    warned = sum(finding.result.status == "WARN" and finding.because is None for finding in findings)
    counts = f"{plural(len(failed), 'cause')} of failure, {plural(warned, 'warning')}; {plural(updates, 'update')} seen"
    price = "" if cost is None else f"; watching cost {cost:.1%} of an update"
    return "\n".join([*report, f"{counts}{price}"])


def _finding_lines(finding: Finding) -> list[str]:
    result = finding.result
    indent = "  " if finding.because else ""
    lines = [f"{indent}{result.status:6}{finding.claim:{CLAIM_WIDTH}}{result.message}"]
    if result.status in ("FAIL", "WARN"):
        lines.append(indent + " " * 6 + "   ".join(finding.details))
    return lines


Judge: TypeAlias = Callable[[RunJournals], CheckResult | None]
"""Function that tests a claim; it returns None if the claim does not apply to the run."""


@dataclass(frozen=True)
class RunCheck:
    """Claim about a run and the function that tests it.

    Attributes:
        name: name of the check, for programs.
        claim: the claim in words, for readers.
        book: chapter that explains the claim.
        judge: function that tests the claim.
        after: names of the checks whose failure explains a failure of this one.
    """

    name: str
    claim: str
    book: str
    judge: Judge
    after: tuple[str, ...] = ()

    def finding(self, run: RunJournals) -> Finding | None:
        """Return the finding of this check for a run, or None if the claim does not apply to it."""
        result = self.judge(run)
        return None if result is None else Finding(self.name, self.claim, result, self.book)


def check(name: str, claim: str, book: str = "", after: tuple[str, ...] = ()) -> Callable[[Judge], RunCheck]:
    """Return a decorator that turns a function into a check."""
    return lambda judge: RunCheck(name, claim, book, judge, after)
