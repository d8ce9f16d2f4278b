"""Is every exhibit's cause named first, its consequences under it and nothing else, and nothing after the cure?"""

import dataclasses
import re

import pytest

from dpbook.book.ch15.collection import _table, exhibit, exhibits, patched
from dpbook.book.ch15.exhibit_runs import OWN_PROCESSES, bad, print_findings, verdicts
from dpbook.core import InvalidArgument, checkout
from dpbook.runs.audit import Finding
from dpbook.runs.audit.findings import CheckResult
from tests.book.ch15.declared import differences
from tests.cases import each

proof = pytest.mark.proof
TOGETHER = [one for one in exhibits() if one.tool not in OWN_PROCESSES]
FEW = [exhibit(name) for name in (
    "one_ranks_loss", "divided_twice", "leftovers", "plateau", "skipped_gradient", "contrastive", "past_the_wrapper",
)]  # fmt: skip
"""Those that no other test of the audit has."""


def test_every_kind_has_an_exhibit_and_every_program_makes_one():
    kinds = {one.kind for one in exhibits()}
    assert kinds == set(range(26))
    assert set(_table("programs")) == {one.program for one in exhibits()}
    assert len({one.name for one in exhibits()}) == len(exhibits())


@each("one", exhibits())
def test_a_cure_is_a_few_lines_of_a_short_script(one):
    assert len(one.script.splitlines()) <= 40
    assert 0 < len(one.difference.splitlines()) <= 11
    compile(one.cured, one.name, "exec")


@each("one", exhibits())
def test_what_is_blamed_stands_in_the_script(one):
    assert not one.place or [line.strip() for line in one.script.splitlines()].count(one.place) == 1


@each("one", exhibits())
def test_a_script_does_not_say_its_name(one):
    assert one.name not in one.script


def test_the_page_of_symptoms_leads_to_every_exhibit_and_to_no_other():
    page = (checkout.root() / "docs" / "symptoms.md").read_text()
    named = {name for row in page.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row)}
    assert named == {one.name for one in exhibits()}


def test_a_name_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgument, match="one_ranks_loss, padding"):
        exhibit("paddings")


@each("old", ["-c = 3\n", "-a = 1\n"])
def test_a_patch_of_lines_that_are_not_there_once_is_refused(old):
    assert patched("a = 1\nb = 2\na = 1\n", "+c = 0\n b = 2\n") == "a = 1\nc = 0\nb = 2\na = 1\n"
    with pytest.raises(InvalidArgument, match="lines that are there once"):
        patched("a = 1\nb = 2\na = 1\n", old)


def finding(status="FAIL", message="0.5 off", because=None, name="gradients", **where):
    return Finding(name, f"{name} are averaged", CheckResult(status, message, **where), because=because)


DECLARED = dataclasses.replace(
    FEW[0], tool="audit", check="gradients", status="FAIL", says="0.5", rank=1, place="x = 1", follows=("replicas",)
)
CAUSE = finding(rank=1, update=2, place=["train.py", 7, "x = 1"])
FOLLOWS = finding("WARN", because="gradients", name="replicas")
HOLDS = finding("PASS", name="data")


@each(
    ("findings", "expected"),
    [
        ([CAUSE, FOLLOWS, HOLDS], []),
        ([HOLDS], ["nothing fires"]),
        ([dataclasses.replace(CAUSE, name="data"), FOLLOWS], ["data is named first, not gradients"]),
        ([finding("WARN", rank=1, place=CAUSE.result.place), FOLLOWS], ["gradients is WARN, not FAIL"]),
        ([finding(message="off", rank=1, place=CAUSE.result.place), FOLLOWS], ["gradients does not say '0.5': off"]),
        ([finding(rank=2, place=CAUSE.result.place), FOLLOWS], ["rank 2 is blamed, not 1"]),
        ([finding(rank=1), FOLLOWS], ["the line is None, not x = 1"]),
        ([CAUSE], ["under it stand [], not ['replicas']"]),
        ([CAUSE, dataclasses.replace(FOLLOWS, because=None)], ["replicas fires, and follows from nothing"]),
    ],
)
def test_every_difference_from_a_declaration_is_named(findings, expected):
    assert differences(DECLARED, findings) == expected


def test_an_exhibit_that_is_well_must_fire_nothing_and_pass_its_check():
    well = dataclasses.replace(DECLARED, status="PASS", check="data", says="0.5")
    assert differences(well, [HOLDS]) == []
    assert differences(well, [CAUSE]) == ["gradients fires", "data does not pass"]


def test_findings_are_printed_with_their_places_and_causes(capsys):
    print_findings([CAUSE, FOLLOWS, HOLDS])
    assert capsys.readouterr().out.splitlines() == [
        "FAIL  gradients are averaged", "      0.5 off", "      rank 1, update 2, train.py:7  x = 1",
        "WARN  follows from gradients: replicas are averaged", "      0.5 off",
    ]  # fmt: skip
    print_findings([HOLDS])
    assert capsys.readouterr().out == "no check fails or warns: 1 claims pass\n"


def faulty(of):
    return {one.name: differences(one, lines) for one, lines in zip(of, verdicts(of).values(), strict=True)}


def cured(of):
    return {name: [line.name for line in bad(lines)] for name, lines in verdicts(of, cured=True).items()}


@pytest.mark.processes
def test_the_cause_is_named_first_its_consequences_follow_and_nothing_else_fires():
    assert faulty(FEW) == {one.name: [] for one in FEW}


@pytest.mark.processes
@proof
def test_every_exhibit_that_audit_judges_is_reported_as_it_declares():
    assert faulty(TOGETHER) == {one.name: [] for one in TOGETHER}


@pytest.mark.processes
@proof
def test_nothing_fires_after_the_cure():
    assert cured(TOGETHER) == {one.name: [] for one in TOGETHER}


@pytest.mark.processes
@proof
@pytest.mark.parametrize("one", [one for one in exhibits() if one.tool in OWN_PROCESSES], ids=lambda one: one.name)
def test_launch_and_preflight_report_their_causes_and_nothing_after_the_cure(one):
    assert (faulty([one]), cured([one])) == ({one.name: []}, {one.name: []})
