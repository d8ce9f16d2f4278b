"""Tests of the stand-in run where torch can have it, in processes of their own: it cannot be taken back."""

import pytest

from dpbook.book.sim import missing

needs_sim = [pytest.mark.processes, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def stream_of(group):
    """Return the stream on which the collectives of a process group run."""
    from dpbook.book.sim.collectives import communicator

    return communicator(group).stream


def refusal(call, *kinds):
    """Return the error that a call raises, in words."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError, *kinds) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
