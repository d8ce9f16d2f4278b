"""Is a pipeline of several chunks per stage idle, and done with its gradients, when the planner says so?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core import InvalidArgument
from dpbook.planning import ACCELERATORS, LINKS, Cluster, Job, predict
from tests.cases import each


def run_pipeline(stages, chunks, micro_batches):
    """Return the seconds of interleaved 1F1B, and when the last backward of each chunk ends, for each stage.

    An independent oracle: every stage carries out its passes in Megatron's order, and each pass waits for the one that
    it needs. A stage takes one second for the forward of a micro-batch, two for its backward.
    """
    total = micro_batches * chunks

    def passes(index, forward):
        group, inside = divmod(index, stages * chunks)
        chunk = inside // stages
        return (forward, chunk if forward else chunks - 1 - chunk, group * stages + inside % stages)

    queues = []
    for stage in range(stages):
        ahead = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
        ahead = min(ahead, total)
        queue = [passes(k, True) for k in range(ahead)]
        for k in range(total - ahead):
            queue += [passes(ahead + k, True), passes(k, False)]
        queues.append(queue + [passes(k, False) for k in range(total - ahead, total)])

    def needs(stage, forward, chunk, batch):
        position = chunk * stages + stage  # along the model
        if forward:
            return None if position == 0 else ((position - 1) % stages, True, (position - 1) // stages, batch)
        if position == stages * chunks - 1:
            return (stage, True, chunk, batch)
        return ((position + 1) % stages, False, (position + 1) // stages, batch)

    ends, clocks, places = {}, [0.0] * stages, [0] * stages
    while any(place < len(queue) for place, queue in zip(places, queues, strict=True)):
        before = list(places)
        for stage, queue in enumerate(queues):
            while places[stage] < len(queue):
                step = queue[places[stage]]
                needed = needs(stage, *step)
                if needed is not None and needed not in ends:
                    break
                clocks[stage] = max(clocks[stage], ends.get(needed, 0.0)) + (1 if step[0] else 2) / chunks
                ends[stage, *step] = clocks[stage]
                places[stage] += 1
        assert places != before, "the order deadlocks"
    final = [[max(ends[s, False, c, b] for b in range(micro_batches)) for c in range(chunks)] for s in range(stages)]
    return max(clocks), final


SHAPES = [(2, 1, 2), (2, 2, 4), (3, 4, 6), (4, 1, 8), (4, 2, 4), (6, 8, 12), (12, 8, 24), (16, 8, 16), (5, 3, 15)]


def job(stages, chunks, micro_batches, **options):
    return Job(10**9, 1024, cut=stages, accumulation=micro_batches, stages=stages, chunks=chunks, **options)


def cluster(stages):
    return Cluster(ACCELERATORS["H100 SXM"], 2 * stages, LINKS["InfiniBand NDR 400 Gb/s"], per_node=1)


@each(("stages", "chunks", "micro_batches"), SHAPES)
def test_stages_idle_as_long_as_in_the_pipeline(stages, chunks, micro_batches):
    seconds, _ = run_pipeline(stages, chunks, micro_batches)
    step = predict(job(stages, chunks, micro_batches), cluster(stages), micro_batches / stages)
    assert seconds / (3 * micro_batches) - 1 == pytest.approx(step.idle / step.compute, abs=1e-12)


@each(("stages", "chunks", "micro_batches"), SHAPES)
def test_gradients_become_final_in_the_time_of_the_pipeline(stages, chunks, micro_batches):
    """The first stage ends last. Its chunks become final at equal distances, from its last chunk to its first."""
    seconds, final = run_pipeline(stages, chunks, micro_batches)
    assert max(final[0]) == pytest.approx(seconds)
    apart = 2 * stages / chunks
    assert final[0][::-1] == pytest.approx([seconds - apart * (chunks - 1 - k) for k in range(chunks)])
    first_gradient = final[0][-1] - 2 / chunks
    assert (seconds - first_gradient) / 2 == pytest.approx(job(stages, chunks, micro_batches).spread)


@pytest.mark.proof
@given(st.integers(2, 16), st.integers(1, 12), st.integers(1, 4))
def test_both_hold_for_pipelines_of_any_shape(stages, chunks, groups):
    shape = {"stages": stages, "chunks": chunks, "micro_batches": groups * stages}
    test_stages_idle_as_long_as_in_the_pipeline.__wrapped__(**shape)
    test_gradients_become_final_in_the_time_of_the_pipeline.__wrapped__(**shape)


def test_more_chunks_expose_less_of_the_sync():
    exposed = [predict(job(8, chunks, 8), cluster(8), 1).exposed for chunks in (1, 2, 8)]
    options = {"stage": 1, "window": "all"}
    sharded = [predict(job(8, chunks, 8, **options), cluster(8), 1).exposed for chunks in (1, 2, 8)]
    for row in (exposed, sharded):
        assert row == sorted(row, reverse=True)
        assert row[0] > 2 * row[-1]


@each(
    ("options", "named"),
    [
        ({"cut": 6, "stages": 4}, "stages"),
        ({"stages": 0}, "stages"),
        ({"chunks": 2}, "chunks"),
        ({"cut": 4, "stages": 4, "chunks": 2, "accumulation": 6}, "chunks"),
        ({"cut": 4, "stages": 4, "chunks": 2, "accumulation": 4, "stage": 2}, "chunks"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(options, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        Job(10**9, **options)
