"""Are the answers to the questions of an oral exam right?"""

import re

import numpy as np

from dpbook.collectives import Link, cost, count, ring
from dpbook.replicas import Sampler
from tests.cases import each
from tests.classroom import oral


def numbers(text):
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def of(draw, seed):
    text, answer = draw(np.random.default_rng(seed))
    return numbers(text), numbers(answer)


@each("seed", range(20))
def test_a_ring_is_that_of_the_library(seed):
    (megabytes, world), (rounds, sent) = of(oral._ring, seed)
    counted = count(ring(int(world)), int(megabytes * 1e6) // 4, 4)
    assert counted.rounds == rounds
    assert abs(counted.busiest_bytes / 1e6 - sent) < 0.1


@each("seed", range(20))
def test_a_price_is_that_of_the_library(seed):
    (world, megabytes, alpha, rate), (microseconds, _) = of(oral._price, seed)
    seconds = cost(ring(int(world)), int(megabytes * 1e6), Link.gigabytes(rate, latency=alpha * 1e-6)).seconds
    assert abs(1e6 * seconds / microseconds - 1) < 0.01


@each("seed", range(20))
def test_a_sampler_reads_as_many(seed):
    (examples, world), (share, twice) = of(oral._padded, seed)
    reads = np.concatenate([Sampler(int(examples), int(world), rank).indices() for rank in range(int(world))])
    assert len(reads) == share * world
    assert len(reads) - len(set(reads.tolist())) == twice


@each("seed", range(20))
def test_a_mean_over_tokens_is_that_of_all_of_them(seed):
    (short, long, low, high), (mean, right) = of(oral._weighted, seed)
    losses = np.repeat([low, high], [int(short), int(long)])
    assert abs(losses.mean() - right) < 0.01
    assert abs(np.mean([low, high]) - mean) < 0.01


@each("seed", range(20))
def test_rows_are_cut_as_often_as_there_are_ranks(seed):
    (rows, world), held = of(oral._resharded, seed)
    assert len(held) == world
    assert sum(held) == rows


def test_the_same_seed_asks_the_same_and_another_one_something_else():
    assert oral.sheet(7, 6) == oral.sheet(7, 6)
    assert oral.sheet(7, 6) != oral.sheet(8, 6)
    assert len(oral.drawn(7, len(oral.QUESTIONS))) == len(oral.QUESTIONS)
