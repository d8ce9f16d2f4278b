"""Is the best cap the best of all caps, where all can be tried?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.overlap import best_cap, equal_layers, layers_of, plan, simulate_step, tensors_of
from dpbook.overlap.step_simulation import distinct_caps
from dpbook.planning import MODELS
from tests.overlap import shapes


def rate(beta, alpha=0.0):
    return lambda nbytes: alpha + beta * nbytes


@given(shapes.tensors(largest=12))
def test_the_plan_changes_at_no_other_cap(tensors):
    caps = distinct_caps(tensors, 10_000)
    total = sum(t.nbytes for t in tensors)
    plans = {plan(tensors, cap, None) for cap in caps} | {plan(tensors, total + 1, None)}
    assert {plan(tensors, cap, None) for cap in range(total + 2)} <= plans


@given(shapes.layers(most=7), st.floats(0, 1e-3), st.floats(0, 1e-2))
def test_no_cap_is_better_than_the_best(layers, beta, alpha):
    """21 tensors have 231 distinct caps, few enough to try all of them."""
    price, tensors = rate(beta, alpha), tensors_of(layers)
    found = best_cap(layers, price)
    plans = {plan(tensors, cap, None) for cap in range(0, sum(t.nbytes for t in tensors) + 4, 4)}
    assert found.duration == min(simulate_step(layers, buckets, price).duration for buckets in plans)
    assert simulate_step(layers, plan(tensors, found.best, None), price).duration == found.duration


def test_latency_makes_the_best_bucket_larger():
    layers = equal_layers(20, 0, 0.1, 20_000)
    best = [best_cap(layers, rate(1e-6, alpha)).best for alpha in (0, 0.002, 0.02, 1)]
    assert best == sorted(best)
    assert best[0] == 1000
    assert best[-1] == 20_000


def test_of_a_large_model_it_tries_few_caps_and_finds_one_as_good_as_any_of_a_fine_grid():
    layers = layers_of(MODELS["Llama-2 7B"].tensors(), forward=0.2)
    price = rate(0.3 / 13.5e9, 2e-3)
    found = best_cap(layers, price)
    assert len(found.caps) <= 64
    assert (np.diff(found.caps) > 0).all()
    fine = np.geomspace(1e4, 14e9, 200).astype(int).tolist()
    assert found.duration <= best_cap(layers, price, caps=fine).duration * 1.005


def test_the_sweep_can_be_given_its_caps_and_the_steps_arguments():
    layers = equal_layers(4, 0, 1, 400)
    found = best_cap(layers, rate(1e-3), caps=[200, 100, 100], optimizer=1.0)
    assert found.caps.tolist() == [100, 200]
    assert found.calls.tolist() == [4, 2]
    assert found.durations == pytest.approx([2.1, 2.2])
    assert found.exposed == pytest.approx([0.1, 0.2])
    assert repr(found) == "best of 2 caps: 100 bytes, 4 buckets, 2,100 ms, exposed 100 ms"
    for caps, message in (([], "caps must be one or more"), ([-1], r"caps\[0\] must be an integer")):
        with pytest.raises(InvalidArgument, match=message):
            best_cap(layers, rate(1), caps=caps)
