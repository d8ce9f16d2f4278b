"""An audit in your own tests: ``pytest_plugins = "dpbook.runs.audit.pytest_fixture"`` in `conftest.py`, or ``-p``."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from dpbook.runs.audit.audited_run import Audit, Verdict, audit


@pytest.fixture(scope="session")
def audited() -> Callable[..., Verdict]:
    """Audit a script, and fail the test with the verdict where it fails: ``audited("train.py", "--epochs", "1")``."""
    return audited_or_failed


def audited_or_failed(*program: str, nproc: int = 3, warnings: Collection[str] | None = None, **how: Any) -> Verdict:
    """The verdict of a script and its arguments, where nothing fails; ``how`` is what `Audit` takes.

    ``warnings`` are the names of the lines that may warn (None: all may). Fails the test otherwise.
    """
    verdict = audit(Audit(program, nproc, **how))
    unmeant = [
        line.name
        for line in verdict.lines
        if warnings is not None and line.found.status == "WARN" and line.name not in warnings
    ]
    if verdict.status or unmeant:
        pytest.fail(f"audit of {' '.join(program)}\n{verdict}", pytrace=False)
    return verdict
