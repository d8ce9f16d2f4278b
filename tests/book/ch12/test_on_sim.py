"""Do functions run on the stand-in accelerator or play their recording, and does the timeline hold its kernels?"""

import json

import nbformat
import pytest

from dpbook.app.notebooks.validation import execute
from dpbook.book import ch12, sim
from dpbook.book.ch12 import on_sim, sim_timeline, whereabouts
from dpbook.core import DpbookError, InvalidArgument, checkout
from tests.book.sim.sim import needs_sim

NOTEBOOK = checkout.root() / "chapters" / "12b_a_gpus_clock.ipynb"
ABSENT = "from dpbook.book import sim\nsim.missing = lambda: 'torch 2.9 does not support devices written in Python'"


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(sim, "missing", lambda: "torch 2.9 is too old")


def code_cells():
    return [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]


def test_what_is_recorded_are_the_functions_of_the_notebook_to_the_letter():
    cells = "\n".join(cell.source for cell in code_cells())
    sources = ["\n".join(kept["source"]) for kept in ch12.recording()["results"].values()]
    assert [source for source in sources if source not in cells] == []
    assert len(sources) == cells.count("@on_sim(") > 10


def cached():
    """The name of a function that is recorded, as another one."""
    return 0, 25


def test_a_function_is_played_only_as_it_was_recorded(absent):
    kept = ch12.recording()["results"]["held"]
    assert ch12.recorded_result("held", "\n".join(kept["source"]) + "\n", "why") == kept["result"] == [0, 25]
    with pytest.raises(DpbookError, match=r"cached is not what was recorded, and cannot run here: torch 2\.9"):
        on_sim()(cached)()


def test_the_reader_is_told_what_is_played(absent):
    made = ch12.recording()["made"]
    assert whereabouts().startswith("torch 2.9 is too old.\nThe cells play what was recorded: ")
    assert all(entry in whereabouts() for entry in made.values())


def one():
    import torch

    return {"sum": (torch.ones(3, device="sim") + 1).sum().item(), "pair": (1, 2)}


def each_rank(rank):
    import torch
    import torch.distributed as dist

    x = torch.full((1,), float(rank + 1), device="sim")
    dist.all_reduce(x)
    return rank, x.item()


class TestHere:
    pytestmark = needs_sim

    def test_a_function_runs_on_its_ranks_and_what_it_returns_is_kept(self, tmp_path, monkeypatch):
        monkeypatch.setenv(ch12.RECORD_VARIABLE, str(tmp_path / "kept.json"))
        assert on_sim()(one)() == {"sum": 6.0, "pair": [1, 2]}
        assert on_sim(ranks=3)(each_rank)() == [[0, 6.0], [1, 6.0], [2, 6.0]]
        kept = ch12.recording(tmp_path / "kept.json")["results"]
        assert kept["one"]["source"][0] == "def one():"
        assert {name: entry["result"] for name, entry in kept.items()} == {
            "one": {"sum": 6.0, "pair": [1, 2]}, "each_rank": [[0, 6.0], [1, 6.0], [2, 6.0]],
        }  # fmt: skip
        assert whereabouts().startswith("The stand-in runs here: ")


@pytest.mark.proof
@pytest.mark.processes
def test_without_the_stand_in_the_notebook_says_the_same(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code" and not cell.metadata}
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ABSENT))
    execute(notebook, tmp_path)
    shown = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for output in (*shown["setup"], *stored["setup"]):
        output.execution_count = None  # a cell more has run
    assert "torch 2.9 does not support devices" in shown["where"][0].text
    assert {name: shown[name] for name in stored} == stored
    assert json.dumps(shown).count('"error"') == 0


KERNELS = [  # in the order in which they ended
    ("aten.mul_.Tensor", 0, 1.0, 1.5, 3.0),
    ("aten.sub_.Tensor", 0, 2.0, 3.0, 4.0),
    ("c10d::allreduce_", 7, 1.25, 3.0, 6.0),
    ("aten.mul_.Tensor", 0, 6.5, 6.5, 7.0),
]
NAMES = ["backward 1", "all-reduce 1", "optimizer 1", "backward 2"]


def rows(timeline, lane):
    return [(span.name, span.kind, span.start, span.end, span.ready) for span in timeline.spans if span.lane == lane]


def test_kernels_lie_in_the_rows_of_their_streams_and_know_their_launch():
    timeline = sim_timeline(KERNELS, NAMES, 0.5, [(2.0, 6.0)])
    assert timeline.window == (0.5, 7.0)
    assert rows(timeline, "compute stream") == [
        ("backward 1", "computation", 1.5, 3.0, 1.0),
        ("optimizer 1", "computation", 3.0, 4.0, 2.0),
        ("backward 2", "computation", 6.5, 7.0, 6.5),
    ]
    assert rows(timeline, "communication") == [("all-reduce 1", "communication", 3.0, 6.0, 1.25)]


def test_the_host_launches_or_waits_and_never_both():
    timeline = sim_timeline(KERNELS, NAMES, 0.5, [(2.0, 6.0)])
    assert [(kind, start, end) for _, kind, start, end, _ in rows(timeline, "host")] == [
        ("launch", 0.5, 1.0), ("launch", 1.0, 1.25), ("launch", 1.25, 2.0), ("wait", 2.0, 6.0), ("launch", 6.0, 6.5),
    ]  # fmt: skip


def test_every_kernel_has_a_name():
    with pytest.raises(InvalidArgument, match="one for each of 4 kernels"):
        sim_timeline(KERNELS, NAMES[:3], 0.5)
