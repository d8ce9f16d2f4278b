"""Does the picture of a run show its first difference, and the table of all exhibits what was recorded of them?"""

import re

import pytest

from dpbook.book.ch15 import draw_matrix, exhibits, play_difference, rank_states, recorded
from dpbook.book.ch15.exhibit_runs import OWN_PROCESSES
from dpbook.core import InvalidArgument
from dpbook.runs.audit import RunJournals
from tests.figures.reading import NS, parse, readable

SAME = {"a": "1", "b": "2"}
OTHER = {"a": "1", "b": "3"}


def rank(rows, gradients):
    """The journal of a rank: an update for each gradient, after which the weights are these too."""
    events = [{"kind": "optimizer", "optimizer": 0, "names": ["a", "b"], "sharded": [], "replicas": 3}]
    for number, gradient in enumerate(gradients, 1):
        events += [
            {"kind": "forward", "rows": [f"{rows}{number}"]},
            {"kind": "step", "optimizer": 0, "update": number, "before": SAME, "gradients": gradient},
            {"kind": "stepped", "optimizer": 0, "update": number, "parameters": gradient},
        ]
    return tuple(events)


PARTED = RunJournals(tuple(rank(rows, [SAME, late, late]) for rows, late in (("x", SAME), ("y", OTHER), ("z", SAME))))
ALIKE = RunJournals(tuple(rank(rows, [SAME, SAME]) for rows in "xyz"))
READ_ALIKE = RunJournals(tuple(rank(rows, [SAME]) for rows in "xyx"))


def test_the_first_difference_is_found_with_its_rank_and_tensor():
    wrong = [state for state in rank_states(PARTED) if state.wrong]
    assert (wrong[0].update, wrong[0].content, wrong[0].letters, wrong[0].tensor) == (
        2,
        "gradient",
        ("A", "B", "A"),
        "b",
    )
    assert wrong[0].verdict == "the first difference: rank 1, b"


def test_examples_must_differ_and_nothing_else():
    assert [state.content for state in rank_states(ALIKE) if state.wrong] == []
    assert [state.content for state in rank_states(READ_ALIKE) if state.wrong] == ["examples"]


def test_the_viewer_ends_with_what_follows_from_the_first_difference():
    frames = play_difference(PARTED).film.frames
    headlines = [frame.picture.alt.split(". ")[0] for frame in frames]
    assert headlines[-2] == "Update 2, gradient: the first difference: rank 1, b"
    assert headlines[-1] == "Update 2, weights: it follows from the first difference"
    letters = re.findall(r">([ABC])</text>", frames[-1].picture.svg)
    assert letters.count("B") == 2 + 2  # the examples of two updates, then rank 1's gradient and weights


def test_a_run_without_an_update_is_refused():
    with pytest.raises(InvalidArgument, match="with an update"):
        play_difference(RunJournals(((), (), ())))


def declared(one):
    """By what the exhibit itself declares."""
    if one.status in ("", "PASS"):
        return {}
    return {one.tool if one.tool in OWN_PROCESSES else one.check: "cause"} | dict.fromkeys(one.follows, "consequence")


def test_what_was_recorded_of_the_exhibits_is_what_they_declare():
    """And test_exhibits.py runs them: what fires is what they declare."""
    assert recorded() == {one.name: declared(one) for one in exhibits()}


def test_the_table_says_of_each_exhibit_what_names_it_and_what_follows():
    picture = draw_matrix(recorded())
    assert readable(picture)
    shown, check = {}, None
    for node in sorted(parse(picture).iter(f"{NS}text"), key=lambda node: (float(node.get("y")), float(node.get("x")))):
        match node.get("x"), node.text:
            case "20", text:
                check = text
            case "146", text:
                shown[text], title = (check, ""), text
            case _, text:
                shown[title] = (check, text)
    assert shown == {one.title: (next(iter(declared(one)), "no check"), ", ".join(one.follows)) for one in exhibits()}
