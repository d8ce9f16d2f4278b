"""Is every exhibit's cause named first, its consequences under it and nothing else, and nothing after the cure?"""

import re

import pytest

from dpbook.book.ch15.collection import FOLDER, exhibit, exhibits
from dpbook.book.ch15.exhibit_runs import OWN_PROCESSES, bad, differences, verdicts
from dpbook.core import InvalidArgument, checkout
from tests.cases import each

proof = pytest.mark.proof
TOGETHER = [one for one in exhibits() if one.tool not in OWN_PROCESSES]
FEW = [exhibit(name) for name in (
    "one_ranks_loss", "divided_twice", "leftovers", "plateau", "skipped_gradient", "contrastive", "past_the_wrapper",
)]  # fmt: skip
"""Those that no other test of the audit has."""


def test_every_kind_has_an_exhibit_and_every_script_is_one():
    kinds = {one.kind for one in exhibits()}
    assert kinds == set(range(26))
    assert {path.stem for path in FOLDER.glob("*.py")} == {one.name for one in exhibits()}
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
def test_a_script_does_not_tell_its_name(one):
    assert one.name not in one.script


def test_the_page_of_symptoms_leads_to_every_exhibit_and_to_no_other():
    page = (checkout.root() / "docs" / "symptoms.md").read_text()
    named = {name for row in page.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row)}
    assert named == {one.name for one in exhibits()}


def test_a_name_that_there_is_not_is_refused():
    with pytest.raises(InvalidArgument, match="one_ranks_loss, padding"):
        exhibit("paddings")


def faulty(of):
    return {one.name: differences(one, lines) for one, lines in zip(of, verdicts(of).values(), strict=True)}


def cured(of):
    return {name: [line.name for line in bad(lines)] for name, lines in verdicts(of, cured=True).items()}


@pytest.mark.processes
def test_the_cause_is_named_first_its_consequences_follow_and_nothing_else_fires():
    assert faulty(FEW) == {one.name: [] for one in FEW}


@pytest.mark.processes
@proof
def test_every_exhibit_that_audit_judges_is_told_as_it_declares():
    assert faulty(TOGETHER) == {one.name: [] for one in TOGETHER}


@pytest.mark.processes
@proof
def test_nothing_fires_after_the_cure():
    assert cured(TOGETHER) == {one.name: [] for one in TOGETHER}


@pytest.mark.processes
@proof
@pytest.mark.parametrize("one", [one for one in exhibits() if one.tool in OWN_PROCESSES], ids=lambda one: one.name)
def test_launch_and_preflight_tell_theirs_and_nothing_after_the_cure(one):
    assert (faulty([one]), cured([one])) == ({one.name: []}, {one.name: []})
