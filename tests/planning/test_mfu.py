"""Is MFU the same in the planner, the report and chapter 12, and does it agree with its source?"""

import json

import pytest

from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.planning import ACCELERATORS, Job, operations_per_token, utilisation
from dpbook.runs.report import run_summary
from tests.cases import each


def test_palm_comes_out_as_published():
    """540 B on 6,144 TPU v4 of 275 TFLOP/s each: 46.2 % (Chowdhery et al., 2022, table 3)."""
    operations = sum(operations_per_token(540.35e9, layers=118, width=48 * 256, context=2048))
    assert utilisation(238_300, operations, 6144 * 275e12) == pytest.approx(0.462, abs=5e-4)


def test_frozen_weights_have_no_gradient_of_their_own():
    assert operations_per_token(100, 10) == (200, 220)
    assert operations_per_token(100) == (200, 400)
    assert operations_per_token(0, layers=2, width=3, context=5) == (120, 240)


@each(
    ("rate", "shape"), [(238_300.0, (540.35e9, 118, 12288, 2048)), (1e4, (10**9, 7, 1024, 512)), (3.0, (5.0, 1, 1, 1))]
)
def test_chapter_12_computes_the_same(rate, shape):
    """The formula of the chapter, from the cell in its notebook."""
    (path,) = (checkout.root() / "chapters").glob("12_*.ipynb")
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    named = {}
    exec(cells["mfu-palm"], named)
    parameters, layers, width, context = shape
    operations = sum(operations_per_token(parameters, layers=layers, width=width, context=context))
    assert named["mfu"](rate, *shape, 1e15) == pytest.approx(utilisation(rate, operations, 1e15), rel=1e-12)


def test_the_planner_counts_the_same_operations_without_the_scores():
    assert Job(1000, trained=100).operations(7) == pytest.approx([7 * n for n in operations_per_token(1000, 100)])
    assert sum(Job(1000, active=500).operations(7)) == 7 * 6 * 500


def test_the_report_says_the_same():
    options = {"precision": "bf16"}
    about = {
        "options": options, "world": 8, "device": "NVIDIA H200", "flops_per_token": 3e9, "tokens_per_step": 1000,
        "resumed_at": 0,
    }  # fmt: skip
    summary = run_summary.Summary(about, [{"step": 1, "seconds": 0.5}], None)
    peak = 8 * ACCELERATORS["H200 SXM"].flops
    assert summary.model_flops_utilisation == utilisation(2000, 3e9, peak)
    options["precision"] = "fp32"  # which has another peak
    assert summary.model_flops_utilisation is None


def test_a_peak_is_above_zero():
    with pytest.raises(InvalidArgument, match="peak must be"):
        utilisation(1, 1, 0)
