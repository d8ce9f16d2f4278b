"""Does a torch that cannot have the stand-in say so, and is nothing installed then?"""

import pytest
import torch

from dpbook import standin
from dpbook.core import DpbookError


def test_a_torch_without_devices_in_python_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_acc", raising=False)
    assert standin.missing() == f"torch {torch.__version__} lets no device be written in Python; 2.13 does"
    with pytest.raises(DpbookError, match=r"there is no stand-in accelerator here: torch .* lets no device"):
        standin.install()
    assert "sim" not in torch.__dict__
