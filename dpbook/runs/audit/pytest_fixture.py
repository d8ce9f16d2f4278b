"""Pytest fixture that audits a script.

Load it with ``pytest_plugins = "dpbook.runs.audit.pytest_fixture"`` in `conftest.py`, or with ``pytest -p``.
"""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from dpbook.runs.audit.audited_run import Audit, Verdict, audit


@pytest.fixture(scope="session")
def audited() -> Callable[..., Verdict]:
    """Audit a script and fail the test if the verdict fails: ``audited("train.py", "--epochs", "1")``."""
    return audited_or_failed


def audited_or_failed(
    *program: str, nproc: int = 3, warnings: Collection[str] | None = None, **options: Any
) -> Verdict:
    """Audit a script; return the verdict, or fail the test with it.

    Args:
        program: script and its arguments.
        nproc: number of ranks.
        warnings: names of the checks that may warn (None: every check may).
        options: further fields of `Audit`.
    """
    verdict = audit(Audit(program, nproc, **options))
    unexpected = [
        finding.name
        for finding in verdict.findings
        if warnings is not None and finding.result.status == "WARN" and finding.name not in warnings
    ]
    if verdict.status or unexpected:
        pytest.fail(f"audit of {' '.join(program)}\n{verdict}", pytrace=False)
    return verdict
