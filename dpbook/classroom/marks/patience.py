"""How long answers are waited for: all are hurried at first, and those that have not ended judged again.

So loops cost little, and an answer that is slow loses nothing, but beside so many that do not end either way: then no
more of the submission are judged again, as others are waiting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dpbook.classroom.marks.judges import Done, Work

PATIENT = 3
"""Answers of a submission that may end not even with all their time, before its others are not judged again."""


def again(answers: Iterable[Work], done: Mapping[Work, Done]) -> list[Work]:
    """What is judged with all its time of a submission's ``answers``: the late ones, in order, up to where `PATIENT`
    of them are known not to have ended, or may come not to."""
    chosen, lost = [], 0
    for one in dict.fromkeys(answers):
        if done[one].late and lost < PATIENT:
            chosen.append(replace(one, hurried=False))
            lost += chosen[-1] not in done or done[chosen[-1]].late
    return chosen


def remarks(answers: Iterable[Work], done: Mapping[Work, Done]) -> list[str]:
    """What a submission is told of answers that were not judged again."""
    late = sum(done[one].late for one in dict.fromkeys(answers))
    left = late - len(again(answers, done))
    if not left:
        return []
    return [
        f"{late} answers did not end in a short time. The first of them were tried again with more, and {PATIENT} of "
        f"these did not end either: the other {left} were not tried again"
    ]
