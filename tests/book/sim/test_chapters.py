"""Does the code of chapters 11 and 12 do on an accelerator what it does on the CPU? One start of two; cells assert."""

import importlib

import pytest

from dpbook.ranks import start
from tests.book.sim.sim import needs_sim

pytestmark = [*needs_sim, pytest.mark.proof]


def test_cells_hold_on_an_accelerator(tmp_path):
    everything = importlib.import_module("tests.book.sim.chapter_ranks").everything
    for found in start(everything, [(rank, 2, str(tmp_path)) for rank in range(2)], timeout=240):
        assert found["device"] == {"sim:0"}
        assert found["layers"] == 16  # eight layers, each with a bias
        assert found["seconds"] > 0
        assert found["traced"]
        assert found["sent"] > 0
        first, *others = found["gradients"].values()
        assert len(others) == 5
        assert others == [pytest.approx(first, rel=1e-4)] * 5
