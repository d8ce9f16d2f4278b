"""Does a launch on accelerators train, go on and predict, and say who failed while the others' streams wait?"""

import json
from pathlib import Path

import pytest

from dpbook.program import Options, metrics
from dpbook.ranks import Launch, launch
from tests.standin.sim import needs_sim

pytestmark = [*needs_sim, pytest.mark.proof]
ON_SIM = str(Path(__file__).with_name("on_sim.py"))
FAULT = """import torch
import torch.distributed as dist
dist.init_process_group("cpu:gloo,sim:simccl", device_id=torch.device("sim", 0))
x = torch.ones(3, device="sim")
dist.all_reduce(x)
if dist.get_rank() == 1:
    raise KeyError("label")
dist.all_reduce(x)
x.sum().item()
"""


def test_a_run_trains_and_goes_on_and_predicts(tmp_path):
    small = {"name": "run", "out": str(tmp_path), "width": 32, "depth": 1, "context": 16, "batch": 2}
    for steps in (2, 4):
        program = ("-m", "dpbook.program", *Options(steps=steps, predict=steps == 4, **small).to_arguments())
        assert launch(Launch((ON_SIM, *program), 2)).status == 0
    folder = tmp_path / "run"
    assert [json.loads(line)["step"] for line in (folder / metrics.FILE).read_text().splitlines()] == [1, 2, 3, 4]
    described, predicted = (
        json.loads((folder / name).read_text()) for name in (metrics.DESCRIPTION, metrics.PREDICTION)
    )
    assert (described["backend"], described["device"]) == ("simccl", "stand-in accelerator")
    assert predicted["seconds"] >= predicted["computation"] > 0
    assert predicted["calls"] == 1


def test_the_rank_that_raised_is_named_and_not_the_one_whose_stream_waited(tmp_path):
    script, said = tmp_path / "fault.py", []
    script.write_text(FAULT)
    assert launch(Launch((ON_SIM, str(script)), 2), said.append).status == 1
    assert said[-1].startswith("rank 1 failed first: KeyError: 'label'")
