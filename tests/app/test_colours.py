"""Do all pages show a passed check in the same green, and a failed one in the same red?"""

import re

import pytest

from dpbook.classroom import Case, Report, progress
from dpbook.classroom.gradebook import pages
from dpbook.core import palette
from dpbook.runs.audit import Finding, Verdict
from dpbook.runs.audit.findings import CheckResult
from dpbook.runs.report.pages import audit_page
from tests.classroom.gradebook.test_gradebook import submission


def audit():
    lines = tuple(Finding("name", "a claim", CheckResult(status, "a sentence")) for status in ("FAIL", "PASS"))
    return audit_page(Verdict(lines, 2, None), "train.py")


def report():
    return Report("01.1", "First", (Case("easy", 2, True), Case("hard", 1, False)))._repr_html_()


def marks():
    return pages.learner(submission("anna"), 1)


@pytest.mark.parametrize("page", [audit, report, marks])
def test_pass_and_fail_have_the_colours_of_the_palette(page):
    assert {palette.PASS, palette.FAIL} <= set(re.findall(r"#[0-9a-f]{6}\b", page()))


def test_the_map_of_progress_has_the_green_of_a_passed_check():
    assert set(re.findall(r"#[0-9a-f]{6}\b", progress()._repr_html_())) == {palette.PASS}
