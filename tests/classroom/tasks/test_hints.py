"""Do hints open one at a time?"""

import pytest

from dpbook.classroom import hint
from dpbook.core.errors import InvalidArgument


def test_each_call_opens_one_more():
    texts = [repr(hint("90.1")) for _ in range(4)]
    assert texts[0] == (
        'Task 90.1, 1 hint of 3 opened: 2 left, hint("90.1") opens the next.\n  1. Which axis is the rank?'
    )
    assert texts[1].endswith("  2. np.tile repeats a row.")
    assert texts[2].startswith("Task 90.1, 3 hints of 3 opened: these are all.")
    assert texts[3] == texts[2]


def test_tasks_do_not_open_each_others():
    hint("90.1")
    assert repr(hint("90.2")) == "Task 90.2 has no hints."
    assert hint("90.1").opened == 2


def test_the_html_is_escaped():
    for _ in range(3):
        html = hint("90.1")._repr_html_()
    assert "&lt;b&gt;one &amp; all&lt;/b&gt;" in html


def test_an_unknown_task_is_named():
    with pytest.raises(InvalidArgument, match=r"90\.7"):
        hint("90.7")
