"""Do the recorded branches say what chapter 04b concludes, and does a branch differ in batch and rate alone?"""

import copy

import numpy as np
import pytest

from dpbook.book.ch04 import play_prices, recorded
from tests.benchmarks.measure_branches import (
    BASE_BATCH,
    BASE_RATE,
    BATCHES,
    RATES,
    SEEDS,
    SEGMENTS,
    TRIED,
    Experiment,
    branch_seed,
)


@pytest.fixture(scope="module")
def segments():
    return recorded()


def critical(races, seeds):
    steps = np.array([np.median(race.steps[:, seeds], axis=1).min() for race in races])
    slope, s_min = np.polyfit(1 / np.array(BATCHES), steps, 1, w=1 / steps)
    return slope / s_min


def test_the_record_is_of_the_settings_in_the_module(segments):
    assert [segment.losses for segment in segments] == list(SEGMENTS)
    for segment, tried_rates in zip(segments, TRIED, strict=True):
        assert [race.batch for race in segment.races] == list(BATCHES)
        for race, tried in zip(segment.races, tried_rates, strict=True):
            assert race.rates.tolist() == list(RATES)
            assert race.steps.shape == (len(RATES), SEEDS)
            untried = sorted(set(range(len(RATES))) - set(tried))
            assert np.isinf(race.steps[untried]).all()
            assert np.isfinite(race.steps.min(axis=0)).all()  # of each seed some branch arrived
            assert race.inside
            assert {race.best - 1, race.best + 1} <= set(tried)


def test_the_critical_batch_size_grows_in_either_half_of_the_seeds(segments):
    early, late = segments
    for seeds in (slice(0, 10, 2), slice(1, 10, 2)):
        assert critical(late.races, seeds) > 2 * critical(early.races, seeds)


def test_a_branch_leaves_its_checkpoint_as_it_was():
    experiment = Experiment()
    checkpoint = experiment.start(0)
    experiment.train(checkpoint, (0.0,), 4, BASE_RATE, np.random.default_rng(0), 2)
    before = copy.deepcopy(checkpoint[0].state_dict())
    branch = copy.deepcopy(checkpoint)
    assert branch[1].state_dict()["state"][0]["step"] == 2  # the moments go with the weights
    experiment.train(branch, (0.0,), 8, 2 * BASE_RATE, np.random.default_rng(1), 3)
    assert all((checkpoint[0].state_dict()[name] == before[name]).all() for name in before)
    assert not all((branch[0].state_dict()[name] == before[name]).all() for name in before)
    assert branch[1].param_groups[0]["lr"] == 2 * checkpoint[1].param_groups[0]["lr"]


def test_the_text_in_the_middle_is_trained_on_and_the_end_is_not():
    experiment = Experiment()
    assert experiment.training + experiment.text.tokens <= experiment.held_out.min()
    assert experiment.held_out.max() < len(experiment.text)


@pytest.mark.proof
def test_the_recorded_steps_come_out_again(segments):
    """Another processor rounds differently, and a branch takes a few steps more or fewer."""
    for segment, (noise, steps) in zip(segments, branch_seed(0), strict=True):
        assert noise.scale > 0
        best, again = (table.min(axis=1) for table in (np.array([race.steps[:, 0] for race in segment.races]), steps))
        np.testing.assert_allclose(again, best, rtol=0.3)


@pytest.mark.proof
def test_where_a_segment_ends_decides_the_critical_batch_size_too():
    """Late branches of one seed, with the losses at which they might have ended."""
    experiment, rng, ends = Experiment(), np.random.default_rng(0), (2.45, 2.4, 2.3)
    state = experiment.start(0)
    for first_loss, _ in SEGMENTS:
        experiment.train(state, (first_loss,), BASE_BATCH, BASE_RATE, rng, 2000)
    found = []
    for batch, rate in zip(BATCHES, (0.001, 0.002, 0.004, 0.008), strict=True):
        at_rates = []
        for tried in (rate, rate / 2):
            branch, order = copy.deepcopy(state), np.random.default_rng([0, batch])
            at_rates.append(experiment.train(branch, ends, batch, tried, order, 40_000 // batch))
        found.append(np.min(at_rates, axis=0))  # each end with the better rate
    sizes, fitted = np.array(BATCHES), []
    for steps in np.transpose(found):
        slope, s_min = np.polyfit(1 / sizes, steps, 1, w=1 / steps)
        fitted.append(slope / s_min)
    assert fitted[0] < fitted[1] / 1.5
    assert fitted[2] > 1.2 * fitted[1]


def test_the_prices_are_the_median_steps_at_the_best_rate_times_the_batch(segments):
    viewer = play_prices({"early": segments[0], "late": segments[1]})
    opening, *late, last = [frame.picture.alt for frame in viewer.film.frames]
    early, later = ([(r.batch, np.median(r.steps, axis=1).min()) for r in segment.races] for segment in segments[:2])
    assert all(f"early, {batch}: {steps * batch:,.0f}" in opening for batch, steps in early)
    assert "late, " not in opening
    for alt, (batch, steps) in zip(late, later, strict=True):
        assert alt.startswith(f"late, batch {batch}: {steps:,.4g} steps, {steps * batch:,.0f} sequences")
    assert last.startswith("From batch 4 to 256: 5.8 times the price early, 1.8 times the price late")
