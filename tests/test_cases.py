"""Does a test with many cases try them all, and say which one failed?"""

import inspect

import pytest

from tests.cases import each


def test_every_combination_is_tried():
    tried = []

    @each("size", [0, 1])
    @each(("world", "name"), [(2, "ring"), (3, "tree")])
    def test(size, world, name):
        tried.append((size, world, name))

    test()
    assert tried == [(0, 2, "ring"), (0, 3, "tree"), (1, 2, "ring"), (1, 3, "tree")]


def test_the_case_that_fails_is_named():
    @each("world", [1, 2, 3])
    def test(world):
        assert world < 2

    with pytest.raises(AssertionError) as caught:
        test()
    assert caught.value.__notes__ == ["the case: world=2"]


def test_what_is_left_are_the_fixtures_and_cases_may_depend_on_them():
    tried = []

    @each("world", lambda name: range(1, len(name)))
    def test(tmp_path, name, world):
        tried.append((tmp_path, name, world))

    assert list(inspect.signature(test).parameters) == ["tmp_path", "name"]
    test(tmp_path="here", name="abc")
    assert tried == [("here", "abc", 1), ("here", "abc", 2)]
    with pytest.raises(AssertionError, match="no case"):
        test(tmp_path="here", name="")


def test_a_test_without_a_case_is_refused():
    with pytest.raises(ValueError, match="without a case"):
        each("world", [])
