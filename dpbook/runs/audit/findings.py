"""Checks of an audit (a claim and the function that tests it), their findings, and the verdict that prints them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from dpbook.core import plural
from dpbook.runs.audit.journals import RunJournals

Status: TypeAlias = Literal["PASS", "FAIL", "WARN", "----"]
"""``"----"`` means not tested; the message then says why."""
CLAIM_WIDTH = 66
"""Columns of a claim in the report."""
NO_UPDATE = "does an optimizer of torch.optim step on every rank, in the process that was launched?"
"""Question to a script that ended without an update of all ranks."""
FORMAT = 1
"""Version of the JSON form of a verdict."""


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


def passed(message: str) -> CheckResult:
    """Return the result of a claim that holds in everything that was recorded."""
    return CheckResult("PASS", message)


def untested(reason: str) -> CheckResult:
    """Return the result of a claim that could not be tested."""
    return CheckResult("----", f"not tested: {reason}")


@dataclass(frozen=True)
class Finding:
    """Result of the check ``name`` together with the claim about the run that it tested.

    ``book`` is the chapter that explains the claim, and ``because`` the failed check that explains this failure.
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

    def __str__(self) -> str:
        indent = "  " if self.because else ""
        line = f"{indent}{self.result.status:6}{self.claim:{CLAIM_WIDTH}}{self.result.message}"
        shown = self.result.status in ("FAIL", "WARN")
        return f"{line}\n{indent}{' ' * 6}{'   '.join(self.details)}" if shown else line


@dataclass(frozen=True)
class Verdict:
    """Verdict of an audit.

    Attributes:
        findings: failures first.
        updates: number of updates that were recorded.
        cost: share of an update that watching takes, or None if too few updates were recorded.
        stopped: number of the signal that stopped the run, or 0.
    """

    findings: tuple[Finding, ...]
    updates: int
    cost: float | None
    stopped: int = 0

    @property
    def status(self) -> int:
        """Exit status of the command: 0: no check failed; 1: one did; 2: no update was made; 128 + n: signal n."""
        if self.stopped:
            return 128 + self.stopped
        if any(finding.failed for finding in self.findings):
            return 1
        return 0 if self.updates else 2

    def __str__(self) -> str:
        """Return one or two lines for each finding, and a summary line."""
        report = list(map(str, self.findings))
        if not self.updates:
            failed_first = any(finding.name == "end" and finding.failed for finding in self.findings)
            reason = "the run failed before one" if failed_first else NO_UPDATE
            report.append(f"{'----':6}{'an update was seen':{CLAIM_WIDTH}}none: {reason}")
        if not any(finding.name.startswith("resume") for finding in self.findings):
            report.append(
                f"{'----':6}{'a stopped run resumes exactly':{CLAIM_WIDTH}}not tested: give --save and --resume"
            )
        causes = [finding.result.status for finding in self.findings if finding.because is None]
        counts = f"{plural(causes.count('FAIL'), 'cause')} of failure, {plural(causes.count('WARN'), 'warning')}"
        counts += f", {sum(line.lstrip().startswith('----') for line in report)} not tested"
        price = "" if self.cost is None else f"; watching cost {self.cost:.1%} of an update"
        return "\n".join([*report, f"{counts}; {plural(self.updates, 'update')} seen{price}"])

    def as_json(self) -> str:
        """Return the verdict as JSON, for programs; the findings are its ``lines``."""
        lines = [finding.as_json() for finding in self.findings]
        fields = {"format": FORMAT, "status": self.status, "updates": self.updates, "cost": self.cost, "lines": lines}
        return json.dumps(fields, indent=1)


def link_causes(findings: Iterable[Finding], causes: dict[str, tuple[str, ...]]) -> list[Finding]:
    """Name the cause of each failure that follows from another one, and sort the findings.

    Args:
        findings: findings in any order.
        causes: for the name of a check, the names of the checks whose failure may explain its own.
    """
    findings = list(findings)
    failed = {finding.name for finding in findings if finding.failed}
    warned = {finding.name for finding in findings if finding.result.status == "WARN"}
    explains = {"FAIL": failed, "WARN": failed | warned}

    def cause(finding: Finding) -> str | None:
        possible = explains.get(finding.result.status, ())
        return next((name for name in causes.get(finding.name, ()) if name in possible), None)

    return sort_findings(replace(finding, because=cause(finding)) for finding in findings)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: causes of failure, their consequences, warnings, passes, claims that were not tested."""

    def severity(finding: Finding) -> tuple[int, bool]:
        order = ("FAIL", "WARN", "PASS", "----").index(finding.result.status)
        return order, finding.failed and finding.because is not None

    return sorted(findings, key=severity)


Judge: TypeAlias = Callable[[RunJournals], CheckResult | None]
"""Function that tests a claim; it returns None if the claim does not apply to the run."""


@dataclass(frozen=True)
class RunCheck:
    """Claim about a run in words and the function that tests it; `Finding` has the same ``name`` and ``book``.

    ``after`` has the names of the checks whose failure explains a failure of this one.
    """

    name: str
    claim: str
    book: str
    after: tuple[str, ...]
    judge: Judge


def check(name: str, claim: str, book: str = "", after: tuple[str, ...] = ()) -> Callable[[Judge], RunCheck]:
    """Return a decorator that turns a function into a check."""
    return lambda judge: RunCheck(name, claim, book, after, judge)
