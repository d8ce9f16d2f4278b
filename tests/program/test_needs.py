"""Is a run that cannot fit, or cannot take a step, foreseen before it begins?"""

import re

import pytest

from dpbook.collectives import FixedBounds, Round, Schedule, reduce_scatter, ring, to_json
from dpbook.core.machine import Gpu
from dpbook.program.models import build
from dpbook.program.needs import adapters, least_memory, parameters, requirements
from dpbook.program.options import Options

GPUS = [Gpu("H100", 80 * 10**9)] * 4


def said_by(*arguments, **options):
    return [str(finding) for finding in requirements(*arguments, **options)]


def test_a_model_that_does_not_fit_is_foreseen():
    large = Options(width=32 * 512, depth=64)
    assert any(
        "the model needs" in text and "a GPU (H100) has 80.0 GB" in text for text in said_by(large, 4, gpus=GPUS)
    )
    assert said_by(Options(), 4, gpus=GPUS) == []


@pytest.mark.parametrize(("strategy", "lora", "nbytes"), [("bucketed", 0, 16), ("zero1", 0, 20), ("bucketed", 8, 4)])
def test_a_rank_needs_what_is_kept_and_what_a_sharded_step_takes_for_a_moment(strategy, lora, nbytes):
    """Bytes per parameter on four ranks: weights, gradients and moments; 10 kept with ZeRO-1, and 10 while it gathers.

    With adapters next to nothing but the weights.
    """
    options = Options(width=32 * 88, depth=64, strategy=strategy, lora=lora)
    assert least_memory(options, 4) == pytest.approx(nbytes * parameters(options), rel=0.02)
    assert (said_by(options, 4, gpus=GPUS) == []) == (lora > 0)  # of 6.1 billion parameters


def test_ranks_without_a_step_are_foreseen():
    assert any("more than the 1,440 digits" in text for text in said_by(Options(model="cnn", batch=721), 2, gpus=[]))


@pytest.mark.parametrize("options", [{}, {"width": 96, "depth": 2, "context": 33}, {"model": "cnn"}, {"lora": 3}])
def test_parameters_are_counted_as_they_are_built(options):
    wanted = Options(**options)
    built = list(build(wanted).parameters())
    assert parameters(wanted) + adapters(wanted) == sum(p.numel() for p in built)
    assert adapters(wanted) in (0, sum(p.numel() for p in built if p.requires_grad))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"\(\[Errno 2\] No such file"),
        ("{}", r"\(text must be of format 'dpbook.schedule'"),
        (to_json(ring(3)), r"\(schedule must be for 2 ranks, got ring\(world=3\)"),
        (to_json(reduce_scatter(2)), r"\(schedule must be an all-reduce"),
        (to_json(Schedule(2, 1, [Round.of(0, 1, 0, True)], name="half")), r"\(half: lost contribution: rank 0"),
        (
            to_json(Schedule(2, 2, list(ring(2).rounds), FixedBounds((0, 3, 8)))),
            "must be a schedule that cuts buffers of any size",
        ),
    ],
    ids=["no file", "no schedule", "another world", "no all-reduce", "a broken promise", "one size"],
)
def test_a_schedule_that_cannot_sum_these_gradients_is_foreseen(content, said, tmp_path):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    found = said_by(Options(all_reduce=str(path)), 2, gpus=[])
    assert any(re.search(f"^problem: all_reduce .*{said}", text) for text in found), found


@pytest.mark.parametrize("name", ["ring", "gloo_ring", "mine.json"])
def test_a_schedule_that_can_is_not(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(to_json(ring(2)), encoding="utf-8")
    assert not [text for text in said_by(Options(all_reduce=name), 2, gpus=[]) if text.startswith("problem")]
    assert any("a schedule sums on the CPU" in text for text in said_by(Options(all_reduce=name), 2, gpus=GPUS))
