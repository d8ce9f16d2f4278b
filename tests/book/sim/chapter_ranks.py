"""Cells of chapters 11 and 12 on the ranks of test_chapters.py, whose tensors are on the simulated device."""

import contextlib
import io
import json
from pathlib import Path

import torch
import torch.distributed as dist

from dpbook.book import sim
from dpbook.core import checkout
from tests.book.sim.path_ranks import SIM


def cells(chapter):
    """The code of a chapter by the ids of its cells."""
    (path,) = (checkout.root() / "chapters").glob(f"{chapter}_*.ipynb")
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def start_here(function, args):
    """Replacement of `ranks.start` in a cell if the ranks exist already: every rank gets the results of all."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, function(*args[dist.get_rank()]))
    return found


def run(chapter, *ids):
    """Run cells with their assertions; what they have named."""
    named, sources = {}, cells(chapter)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(sources["setup"], named)
        named["start"] = start_here
        for cell in ids:
            exec(sources[cell], named)
    return named


def everything(rank, world, folder):
    torch.set_num_threads(1)
    sim.join()
    torch.set_default_device(SIM)
    run("11", "caps-function", "caps-run", "accumulate-function", "accumulate-run", "tokens-function", "tokens-run")
    named = run("12", "trace-function", "overlap-function")
    layers, sweep, seconds = named["real_step"](rank, folder)
    link = named["ObservedLink"](named["Link"].gigabits(1, latency=1e-4))
    gradients = {}
    for (medium, way), model in (named["ways"]("loopback", None) | named["ways"]("emulated", link.all_reduce)).items():
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        named["step_time"](model, named["loss"])
        gradients[f"{medium} {way}"] = [p.grad.sum().item() for p in model.parameters()]
    return {
        "device": {layer.tensors[0].device for layer in layers}, "layers": len(layers), "sweep": sweep.backend,
        "seconds": seconds, "traced": Path(folder, f"rank{rank}.json").exists(), "gradients": gradients,
        "sent": len(link.calls),
    }  # fmt: skip
