"""Tests of the stand-in run where torch can have it, in processes of their own: it cannot be taken back."""

import pytest

from dpbook.book.sim import missing

needs_sim = [pytest.mark.processes, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
