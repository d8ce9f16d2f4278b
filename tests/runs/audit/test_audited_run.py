"""What does an audit return, and what does the fixture of pytest make of it? No script runs here."""

import signal

import pytest

from dpbook.runs.audit import Finding, Verdict, audited_run, pytest_fixture
from dpbook.runs.audit.findings import CheckResult
from tests.cases import each


def verdict(*statuses, updates=2, stopped=0):
    findings = tuple(Finding(f"check {k}", "a claim", CheckResult(status, "0.5")) for k, status in enumerate(statuses))
    return Verdict(findings, updates, None, stopped)


@each(
    ("expected", "status"),
    [
        (verdict("PASS", "WARN"), 0),
        (verdict("PASS", "FAIL"), 1),
        (verdict("PASS", updates=0), 2),
        (verdict("FAIL", updates=0), 1),
        (verdict("FAIL", stopped=signal.SIGINT), 128 + signal.SIGINT),
    ],
)
def test_the_exit_status_says_what_the_audit_found(expected, status):
    assert expected.status == status


@pytest.fixture
def audited(monkeypatch):
    """The fixture's function, for an audit with the verdict that it is given."""

    def call(expected, warnings):
        monkeypatch.setattr(pytest_fixture, "audit", lambda spec: expected)
        return pytest_fixture.audited_or_failed(__file__, warnings=warnings)

    return call


@each(
    ("expected", "warnings"),
    [(verdict("PASS"), None), (verdict("WARN"), None), (verdict("WARN"), ["check 0"]), (verdict("PASS"), [])],
)
def test_the_fixture_returns_the_verdict_of_an_audit_that_passes(audited, expected, warnings):
    assert audited(expected, warnings) is expected


@each(
    ("expected", "warnings"),
    [(verdict("WARN"), []), (verdict("FAIL"), ["check 0"]), (verdict("PASS", updates=0), None)],
)
def test_the_fixture_fails_a_test_with_the_verdict_or_with_a_warning_that_is_not_allowed(audited, expected, warnings):
    with pytest.raises(pytest.fail.Exception) as failure:
        audited(expected, warnings)
    assert str(failure.value) == f"audit of {__file__}\n{expected}"


def test_until_all_ranks_have_updated_the_progress_of_each_is_reported(monkeypatch, tmp_path):
    kinds = {0: ["forward", "backward", "step"], 1: ["forward", "forward"]}
    monkeypatch.setattr(audited_run, "read_journal", lambda folder, rank: [{"kind": kind} for kind in kinds[rank]])
    assert audited_run._progress(tmp_path, 1) is None
    assert audited_run._progress(tmp_path, 2) == (
        "waiting for the first update (rank 0: 1 forward, 1 backward; rank 1: 2 forwards, 0 backwards); "
        "Ctrl-C ends it with a verdict on what was seen"
    )
