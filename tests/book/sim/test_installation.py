"""Does a torch that cannot have the stand-in say so, and is nothing installed then?"""

import pytest
import torch

from dpbook.book import sim
from dpbook.core import DpbookError


def test_a_torch_without_devices_in_python_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_acc", raising=False)
    assert sim.missing() == f"torch {torch.__version__} does not support devices written in Python; 2.13 does"
    with pytest.raises(DpbookError, match=r"there is no stand-in accelerator here: torch .* does not support devices"):
        sim.install()
    assert "sim" not in torch.__dict__
