"""Is a step over an emulated link observed as it ran? Asserted are only times that the link itself makes."""

import importlib
import itertools

import pytest

from dpbook.collectives import Link
from dpbook.collectives.pricing import closed_forms
from dpbook.overlap import Timeline
from dpbook.ranks import start

pytestmark = pytest.mark.processes
LINK = Link(1e-3, 1e6)
ELEMENTS = [20 * 20, 20] * 4


def observed(rank):
    import torch
    from torch import nn

    from dpbook.ddp import emulated_link
    from dpbook.ddp.wrappers import BucketedDDP, NaiveDDP

    net = nn.Sequential(*[nn.Linear(20, 20) for _ in range(4)])
    x, found = torch.ones(3, 20), []
    for wrap, options in ((NaiveDDP, {}), (BucketedDDP, {"cap": 1680, "first": None})):
        link = emulated_link.ObservedLink(LINK)
        model = wrap(net, all_reduce=link.all_reduce, **options)
        for _ in range(2):
            spans = emulated_link.observe_step(model, lambda model: model(x).sum(), link)
        found.append((spans, emulated_link.step_time(model, lambda model: model(x).sum())))
        model.unwrap()
    return found


@pytest.fixture(scope="module")
def steps():
    module = importlib.import_module("tests.ddp.test_clock")
    return start(module.observed, [(rank,) for rank in range(2)])


def messages(spans):
    return [span for span in spans if span.kind == "communication"]


@pytest.mark.parametrize(("wrapper", "count"), [(0, 8), (1, 4)])
def test_every_message_takes_what_the_link_says_one_after_another(steps, wrapper, count):
    for rank in steps:
        spans, _ = rank[wrapper]
        sent = messages(spans)
        assert len(sent) == count
        assert all(a.end <= b.start for a, b in itertools.pairwise(sent))
        price = closed_forms.ring(2, LINK)
        elements = reversed(ELEMENTS) if wrapper == 0 else [420] * 4
        assert [s.duration for s in sent] == pytest.approx([price(4 * n) for n in elements], rel=1e-4)


def test_naive_sends_after_backward_and_buckets_go_out_during_it(steps):
    """A call begins with the rank that comes last, when another's backward may be over."""
    last = max(rank[1][0][1].end for rank in steps)
    for rank in steps:
        (naive, _), (bucketed, _) = rank
        assert naive[1].name == bucketed[1].name == "backward"
        assert messages(naive)[0].start >= naive[1].end
        assert bucketed[1].start < messages(bucketed)[0].start < last


def test_a_step_lasts_until_its_messages_have_arrived(steps):
    for rank in steps:
        for spans, seconds in rank:
            assert seconds >= sum(span.duration for span in messages(spans))


def test_the_ranks_make_up_one_timeline(steps):
    timeline = Timeline(tuple(span for rank in steps for span in rank[1][0]))
    assert timeline.ranks == (0, 1)
    assert timeline.busy("communication") == pytest.approx(4 * closed_forms.ring(2, LINK)(4 * 420), rel=1e-4)
