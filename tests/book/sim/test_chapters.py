"""Does the code of chapters 11 and 12 do on an accelerator what it does on the CPU? One start of two; cells assert."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbook.book import sim
from dpbook.core import checkout
from tests.book.sim.sim import needs_sim
from tests.scenarios import Scenarios, gathered

SIM = torch.device("privateuseone", 0)
pytestmark = [*needs_sim, pytest.mark.proof]
scenario = Scenarios(sim.join)


def cells(chapter):
    """Return the code of a chapter by the ids of its cells."""
    (path,) = (checkout.root() / "chapters").glob(f"{chapter}_*.ipynb")
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def start_here(function, args):
    """Replacement of `ranks.start` in a cell if the ranks exist already: every rank gets the results of all."""
    return gathered(function(*args[dist.get_rank()]))


def run(chapter, *ids):
    """Run cells with their assertions, and return the names that they define."""
    names, sources = {}, cells(chapter)
    with contextlib.redirect_stdout(io.StringIO()), torch.device(SIM):
        exec(sources["setup"], names)
        names["start"] = start_here
        for cell in ids:
            exec(sources[cell], names)
    return names


@scenario
def cells_of_chapter_11_hold(rank, world, folder):
    run("11", "caps-function", "caps-run", "accumulate-function", "accumulate-run", "tokens-function", "tokens-run")


@scenario
def cells_of_chapter_12_hold(rank, world, folder):
    names = run("12", "trace-function", "overlap-function")
    with torch.device(SIM):
        layers, _, seconds = names["real_step"](rank, folder)
        assert {layer.tensors[0].device for layer in layers} == {"sim:0"}
        assert len(layers) == 16  # eight layers, each with a bias
        assert seconds > 0
        assert Path(folder, f"rank{rank}.json").exists()
        link = names["ObservedLink"](names["Link"].gigabits(1, latency=1e-4))
        sums = []
        ways = names["ways"]("loopback", None) | names["ways"]("emulated", link.all_reduce)
        for model in ways.values():
            torch.manual_seed(0)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)
            names["step_time"](model, names["loss"])
            sums.append([p.grad.sum().item() for p in model.parameters()])
    assert link.calls
    assert len(ways) == 6
    assert sums[1:] == [pytest.approx(sums[0], rel=1e-4)] * 5


failures, test_scenario = scenario.tests(2, folder=True, timeout=240)
