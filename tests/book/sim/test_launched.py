"""Does a launch look at accelerators first, and do the scripts of chapters run on them? More is in tests/gpu."""

import json
import re

import pytest

from dpbook.app import main
from dpbook.core import checkout
from dpbook.runs.launch import Launch, launch
from tests.book.sim.sim import needs_sim
from tests.cases import each
from tests.gpu.dpbook_on_sim import launch_on_sim
from tests.gpu.launches import IN_RANK

pytestmark = [*needs_sim, pytest.mark.proof]


@pytest.fixture
def on_sim(monkeypatch):
    """Whatever is launched finds a stand-in accelerator for each of its ranks."""
    monkeypatch.setattr(Launch, "command", Launch.command)  # put back at the end
    launch_on_sim()


def test_a_launch_looks_before_it_starts(on_sim, tmp_path, capfd):
    size = ["--preset", "gpu", "--depth", "1", "--context", "16", "--batch", "2", "--width", str(32 * 10**4)]
    assert main(["launch", "--nproc", "2", "--out", str(tmp_path), *size]) == 1
    assert "the model needs" in capfd.readouterr().err


@each(
    ("chapter", "cell", "printed"),
    [("09", "script-text", "2 ranks agree on 11"), ("11", "script", "world 2: gradient 5.5")],
)
def test_a_script_of_the_book_runs_with_its_device_swapped(chapter, cell, printed, tmp_path, capfd):
    """Word by word: what it asks of `torch.cuda` and NCCL it asks of the stand-in."""
    (path,) = (checkout.root() / "chapters").glob(f"{chapter}_*.ipynb")
    cells = {one["id"]: "".join(one["source"]) for one in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    named = {}
    exec(cells[cell], named)
    text = re.sub("nccl", "simccl", named["script"].replace("cuda", "sim"))
    script = tmp_path / "script.py"
    script.write_text(text + '\nassert device is not None and device.type == "sim"\n')
    assert launch(Launch((IN_RANK, "--sim", str(script)), 2)).status == 0
    assert printed in capfd.readouterr().out
