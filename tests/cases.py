"""Many small cases in one test, where each alone would be a line in the report and nothing more."""

import functools
import inspect
import re
import reprlib

import pytest

from dpbook.core import InvalidArgument


def each(names, cases):
    """Decorator like ``pytest.mark.parametrize``, in one item: the first case that fails is named, and ends the test.

    Fixtures are made once for all cases. ``cases`` may be a function of other arguments of the test.
    """
    names = [names] if isinstance(names, str) else list(names)
    cases = cases if inspect.isfunction(cases) else list(cases)
    if not cases:
        raise ValueError("a test without a case proves nothing")

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**arguments):
            for case in _of(cases, arguments):
                values = dict(zip(names, case if len(names) > 1 else [case], strict=True))
                try:
                    test(**arguments, **values)
                except Exception as error:
                    error.add_note("the case: " + ", ".join(f"{n}={_SHORT.repr(v)}" for n, v in values.items()))
                    raise

        rest = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=rest)
        return run

    return decorate


def refuses(*cases):
    """Return a test of pairs (call, words): each call raises an `InvalidArgument` that begins with its words."""

    @each(("call", "words"), cases)
    def test(call, words):
        with pytest.raises(InvalidArgument, match=rf"^{re.escape(words)}(?!\w)"):
            call()

    return test


def lines_of(output):
    """Return the lines of a program's output, without those with which gloo announces a group in torch 2.9."""
    return [line for line in output.splitlines() if not line.startswith("[Gloo] Rank ")]


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


def _of(cases, arguments):
    if isinstance(cases, list):
        return cases
    found = list(cases(*(arguments[name] for name in inspect.signature(cases).parameters)))
    assert found, f"no case for {arguments}"
    return found
