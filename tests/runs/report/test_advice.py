"""Does a report advise what would help, by as much as the numbers say, and nothing else?"""

import pytest

from dpbook.overlap import MIB
from dpbook.runs.report.advice import advise
from dpbook.runs.report.measured_run import NotMeasured, read_run
from tests.runs.report import journals

EVEN = {"computing": 0.1, "summing": 0.0, "updating": 0.01}


def repeated(folder, *ranks, updates=12, model=()):
    """Write the journals of a run whose ranks repeat an update, given as the arguments of `journals.update`."""
    journals.write(folder, [[journals.update(k, **one) for k in range(updates)] for one in ranks], model)


def measured(folder, *ranks, updates=12, model=()):
    """The same run as it is read."""
    repeated(folder, *ranks, updates=updates, model=model)
    return read_run(folder, len(ranks))


def only(run):
    (advice,), _ = advise(run)
    return advice


def test_nothing_is_advised_where_nothing_is_lost(tmp_path):
    assert advise(measured(tmp_path, *[EVEN | {"summing": 0.001}] * 2))[0] == []


def test_times_that_differ_by_noise_alone_fit_no_link(tmp_path):
    """3 MB take a nanosecond longer than 1 MB: no link carries 2 MB in a nanosecond."""
    third = 0.1 / 3  # between the two sums' beginnings, which is how long the first one takes
    run = measured(tmp_path, *[EVEN | {"summing": third + 1e-9}] * 2, model={"device": "cuda"})
    assert isinstance(run.price, str)
    assert run.price.startswith(("the messages' times fit no link", "large messages took no longer"))


def test_calls_that_end_together_have_one_bandwidth(tmp_path):
    """1 MB took a third of 100 ms, and 3 MB were there 0.1 ms later: gloo's threads carried both at once."""
    run = measured(tmp_path, *[EVEN | {"summing": 1e-4}] * 2)
    assert isinstance(run.price, str)
    assert run.price.startswith("the messages' times fit no link: those of a step would take")
    assert run.price_of_same_messages(4_000_000) == pytest.approx(0.1 / 3 + 1e-4)


@pytest.mark.parametrize(("workers", "needed"), [(0, 2), (1, 3), (2, 5)])
def test_a_slow_loader_needs_as_many_workers_as_load_beside_the_rest(tmp_path, workers, needed):
    """A step of 240 ms waits for 130. Without a worker that is all of the loading, else each has loaded for 240."""
    loading = EVEN | {"computing": 0.099, "summing": 0.001, "loader": 0.13, "workers": workers}
    run = measured(tmp_path, loading, loading)
    advice = only(run)
    assert advice.change.startswith(f"DataLoader(…, num_workers={needed}) in place of {workers}")
    assert run.step - advice.gain == pytest.approx(0.11)


def test_a_loader_that_no_script_has_or_that_is_quick_is_not_advised(tmp_path):
    assert advise(measured(tmp_path, EVEN | {"loader": 0.1}))[0] == []
    quick = {"computing": 0.01, "summing": 0.0, "updating": 0.001, "loader": 0.0019, "workers": 0}
    assert advise(measured(tmp_path, quick))[0] == []


def test_a_slow_rank_costs_what_the_others_wait(tmp_path):
    slow, fast = {"computing": 0.15, "summing": 0.001}, {"computing": 0.1, "summing": 0.051}
    advice = only(measured(tmp_path, EVEN | fast, EVEN | slow, EVEN | fast))
    assert advice.change.startswith("find out why rank 1 is slow: it works for 160 ms of a step, the others for 110")
    assert advice.gain == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("part", "words"),
    [("rest", "outside of forward, backward, loader and optimizer"), ("loader", "waiting for the loader")],
)
def test_the_advice_names_the_part_in_which_a_rank_is_slow(tmp_path, part, words):
    """Workers of one rank that are behind may load as fast as the others: the rank waits all the same."""
    slow = EVEN | {"summing": 0.001, part: 0.05, "workers": 1}
    best, _ = advise(measured(tmp_path, EVEN | {"summing": 0.051, "workers": 1}, slow))
    assert best[-1].change.startswith("find out why rank 1 is slow")
    doubt = " (its workers are slower, or only behind since a delay)" if part == "loader" else ""
    assert best[-1].change.endswith(f"of that it spends 50 ms {words}, the others 0 ms{doubt}")


def test_no_rank_is_slow_where_all_wait_for_workers_that_load_alike(tmp_path):
    """Batches take 160 ms on both ranks. The workers of rank 1 are 30 ms ahead, so it waits for rank 0's instead."""
    early, late = EVEN | {"loader": 0.02, "summing": 0.031}, EVEN | {"loader": 0.05, "summing": 0.001}
    run = measured(tmp_path, late | {"workers": 1}, early | {"workers": 1})
    assert run.slow is None
    assert measured(tmp_path, late | {"workers": 0}, early | {"workers": 0}).slow == 0


@pytest.mark.parametrize(
    ("workers", "seconds", "name", "advised"),
    [(0, 0.0015, "", False), (0, 0.0025, "", True), (2, 0.008, "ready", False), (2, 0.008, "", True)],
)
def test_a_worker_is_advised_if_batches_load_longer_than_a_worker_hands_them_over(
    tmp_path, workers, seconds, name, advised
):
    """Four micro-batches, whose workers, if there are any, had the batch ready or not."""
    waits = [["loader", at, at + seconds, name, 0, None] for at in (0.0, 0.01, 0.02, 0.03)]

    def update(number):
        once = journals.update(number, computing=0.06, summing=0.0, updating=0.001, rest=0.039, workers=workers)
        return once | {"spans": [*waits, *once["spans"][1:]]}

    journals.write(tmp_path, [[update(number) for number in range(12)]])
    assert bool(advise(read_run(tmp_path, 1))[0]) == advised


def test_batches_are_ready_where_every_rank_has_its_own(tmp_path):
    """Workers of equal speed: one rank waits 50 ms for its batch, while that of the other gets ready. In turn, too."""

    def one(rank, number):
        late = rank == number % 2
        made = {"loader": 0.05 if late else 0.001, "summing": 0.001 if late else 0.05}
        once = journals.update(number, computing=0.03, updating=0.01, workers=1, **made)
        once["spans"][0][3] = "" if late else "ready"
        return once

    journals.write(tmp_path, [[one(rank, number) for number in range(12)] for rank in range(2)])
    run = read_run(tmp_path, 2)
    assert run.ready_share == 0
    assert any(each.change.startswith("DataLoader(…, num_workers=") for each in advise(run)[0])


def test_the_workers_are_those_of_most_updates(tmp_path):
    """The last update ended with an evaluation, whose loader has none."""
    loading = EVEN | {"computing": 0.099, "summing": 0.001, "loader": 0.13}
    of_rank = [journals.update(number, **loading, workers=2 if number < 11 else 0) for number in range(12)]
    journals.write(tmp_path, [of_rank] * 2)
    assert only(read_run(tmp_path, 2)).change.endswith("in place of 2, if each rank has cores for them")


def test_ranks_that_are_late_in_turn_lose_what_equal_work_would_save(tmp_path):
    """One of two ranks works for 150 ms and the other for 110, in turn: with equal work both take 130."""

    def one(rank, number):
        late = (rank + number) % 2
        return journals.update(number, computing=0.1 + 0.04 * late, summing=0.041 - 0.04 * late, updating=0.01)

    journals.write(tmp_path, [[one(rank, number) for number in range(12)] for rank in range(2)])
    advice = only(read_run(tmp_path, 2))
    assert advice.change.startswith("find out why another rank is late in each update")
    assert advice.gain == pytest.approx(0.02)


def test_a_forgotten_no_sync_costs_the_sums_of_all_but_the_last_micro_batch(tmp_path):
    """Four micro-batches, each of which sums 4 MB in 20 ms; a wrapper that syncs them all exposes 80 ms."""

    def update(number):
        once = journals.update(number, computing=0.02, summing=0.02, updating=0.0)
        marks, spans, at = [["begun", 0.0]], [], 0.0
        for _ in range(4):
            marks += [[kind, at + when] for kind, when in once["marks"] if kind not in ("begun", "stepped")]
            spans += [[kind, at + begun, at + ended, *more] for kind, begun, ended, *more in once["spans"]]
            at += 0.04
        return once | {"marks": [*marks, ["stepped", at]], "spans": spans, "synced": [True] * 4}

    journals.write(tmp_path, [[update(k) for k in range(12)]] * 2)
    best, _ = advise(read_run(tmp_path, 2))
    assert best[0].change.startswith("no_sync() around forward and backward of all but the last of 4 micro-batches")
    assert best[0].gain <= 0.08
    assert best[0].gain == pytest.approx(0.06, rel=0.25)


def test_a_forgotten_no_sync_is_priced_where_all_gradients_travel_in_one_message(tmp_path):
    """The size of the message stays the same, so its measured time is its price: 10 ms for each of 4 micro-batches."""

    def update(number):
        marks, spans = [["begun", 0.0]], []
        for at in (0.0, 0.04, 0.08, 0.12):
            marks += [["forward", at], ["backward", at + 0.01], [1, at + 0.02], [0, at + 0.03], ["returned", at + 0.04]]
            spans += [
                ["forward", at, at + 0.01, "", 0, None], ["backward", at + 0.01, at + 0.04, "", 0, None],
                ["call", at + 0.03, at + 0.04, "all_reduce", 4_000_000, None],
            ]  # fmt: skip
        once = journals.update(number, computing=0.03, summing=0.01, updating=0.0)
        return once | {"marks": [*marks, ["stepped", 0.16]], "spans": spans, "synced": [True] * 4}

    journals.write(tmp_path, [[update(k) for k in range(12)]] * 2, {"cap": 8 * MIB})
    run = read_run(tmp_path, 2)
    best, _ = advise(run)
    assert isinstance(run.price, str)
    assert best[0].change.startswith("no_sync()")
    assert best[0].gain == pytest.approx(0.03, rel=0.1)


def test_buckets_and_bytes_are_advised_by_simulation(tmp_path):
    """On an accelerator 3 MB take 100 ms and 1 MB a third of it. In one bucket after backward they take 133.

    In two buckets the 3 MB begin after two thirds of forward and backward: 33 ms are hidden. Half the bytes take 67.
    """
    late = EVEN | {"summing": 0.1}
    best, reasons = advise(measured(tmp_path, late, late, model={"device": "cuda", "cap": 8 * MIB}))
    assert [(each.change.split(":")[0], round(each.gain, 4)) for each in best] == [
        ("send gradients in bf16", 0.0667), ("DistributedDataParallel(…, bucket_cap_mb=2)", 0.0333)
    ]  # fmt: skip
    assert reasons == []


def test_an_optimizer_is_sharded_where_its_weights_travel_faster_than_it_steps(tmp_path):
    """One of two tensors has 3/4 of the weights: 80 ms of optimizer become 60, and the 4 MB of weights take 2 ms."""
    slow = EVEN | {"summing": 0.003, "computing": 0.003, "updating": 0.08}
    best, _ = advise(measured(tmp_path, *[slow] * 4, model={"device": "cuda"}))
    assert best[0].change.startswith("shard the optimizer")
    assert best[0].gain == pytest.approx(0.02 - 0.002, abs=1e-6)


def test_messages_far_from_all_that_were_measured_have_no_price(tmp_path):
    """The script sums 40 tensors of 8 KB to 16 KB; DDP would send 4 MB at once."""

    def update(number):
        one = journals.update(number, **EVEN | {"updating": 0.1})
        calls = [
            [
                "wait",
                0.11 + k / 1000,
                0.11 + k / 1000 + (1 + k % 2) / 2000,
                "all_reduce",
                8000 * (1 + k % 2),
                ["own.py", 7, ""],
            ]
            for k in range(40)
        ]
        return one | {"synced": [None], "spans": one["spans"] + calls}

    journals.write(
        tmp_path, [[update(k) for k in range(12)]] * 2, {"wrapper": None, "wrapped": False, "bucketed": False}
    )
    best, reasons = advise(read_run(tmp_path, 2))
    assert best == []
    assert reasons[0].startswith("DistributedDataParallel in place of the script's all-reduce: its messages would have")


def test_sums_of_a_script_are_replaced_by_buckets_like_those_that_were_measured(tmp_path):
    """A script sums 12 MB in tensors of 1 MB and less, in 120 ms; DDP's default of 25 MB is beyond these messages.

    Small buckets begin after 40 of the 100 ms of forward and backward, so that 60 ms are hidden.
    """
    elements = [125_000 * (1 + k % 2) for k in range(16)]
    tensors = [{"name": f"t{k}", "shape": [n], "dtype": "float32", "device": "cpu"} for k, n in enumerate(elements)]

    def update(number):
        calls, now = [], 0.1
        for n in elements:
            calls.append(["wait", now, now + 4e-8 * n, "all_reduce", 4 * n, None])
            now = calls[-1][2]
        passes = [["forward", 0.0, 0.03, "", 0, None], ["backward", 0.03, 0.1, "", 0, None]]
        marks = [["begun", 0.0], ["forward", 0.0], ["backward", 0.03]]
        marks += [[15 - k, 0.04 + 0.06 * k / 15] for k in range(16)] + [["returned", 0.1], ["stepped", now]]
        one = journals.update(number, **EVEN)
        return one | {"synced": [None], "spans": passes + calls, "marks": marks}

    model = {"wrapper": None, "wrapped": False, "bucketed": False, "tensors": tensors, "device": "cuda"}
    journals.write(tmp_path, [[update(k) for k in range(12)]] * 2, model)
    advice = only(read_run(tmp_path, 2))
    assert "DistributedDataParallel(model, bucket_cap_mb=1) in place" in advice.change
    assert advice.gain == pytest.approx(0.06, rel=0.1)


def test_a_small_collective_between_the_passes_may_be_called_rarely_and_no_other(tmp_path):
    def update(number):
        one = journals.update(number, **EVEN | {"summing": 0.01, "rest": 0.05})
        calls = [
            ["wait", 0.0, 0.02, "all_reduce", 4, ["train.py", 30, "dist.all_reduce(loss)"]],  # a logged loss
            ["wait", 0.02, 0.04, "all_reduce", 10**6, ["train.py", 31, "dist.all_reduce(sums)"]],  # large
            ["wait", 0.04, 0.045, "all_reduce", 4, ["train.py", 40, "trainer.fit(model)"]],  # of a framework
            [
                "wait",
                0.06,
                0.09,
                "all_gather",
                4,
                ["train.py", 20, "dist.all_gather(means)"],
            ],  # inside forward, as of a batch norm
        ]
        return one | {"spans": one["spans"] + calls}

    journals.write(tmp_path, [[update(k) for k in range(12)]] * 2)
    advice = only(read_run(tmp_path, 2))
    assert advice.change == "the collective at train.py:30 in every 10th update, if only a log needs it"
    assert advice.gain == pytest.approx(0.9 * 0.02)


def test_copies_out_of_buckets_and_the_broadcast_of_buffers_have_their_measured_time(tmp_path):
    def update(number):
        one = journals.update(number, **EVEN | {"summing": 0.01, "rest": 0.02})
        returned = one["marks"][-2][1] + 0.008
        spans = [
            ["backward", one["spans"][2][1], returned, "", 0, None] if s[0] == "backward" else s for s in one["spans"]
        ]
        marks = [["returned", returned] if m[0] == "returned" else m for m in one["marks"]]
        return one | {"marks": marks, "spans": [*spans, ["wait", 0, 0.006, "broadcast of buffers", 0, None]]}

    journals.write(tmp_path, [[update(k) for k in range(12)]] * 2, {"bucket_view": False})
    best, _ = advise(read_run(tmp_path, 2))
    assert [(each.change.split(",")[1].split(")")[0].strip(), round(each.gain, 6)) for each in best] == [
        ("gradient_as_bucket_view=True", 0.008), ("broadcast_buffers=False", 0.006)
    ]  # fmt: skip


def in_no_turn():
    return [
        journals.update(k, **EVEN, stepped=[optimizer]) for k, optimizer in enumerate([0, 0, 0, 0, 1, 1, 0, 1, 0, 0])
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "journal-1.jsonl").unlink(), "rank 1 wrote no journal"),
        (lambda folder: [(folder / f"journal-{k}.jsonl").write_text("") for k in (0, 1)], "no update was seen"),
        (lambda folder: repeated(folder, EVEN, EVEN, updates=0), "the script ended after 0 updates; 5 are needed"),
        (lambda folder: repeated(folder, EVEN, EVEN, updates=4), "after 4 updates"),
        (lambda folder: repeated(folder, EVEN, EVEN, model={"format": 0}), "another version of dpbook"),
        (lambda folder: repeated(folder / "x", EVEN, EVEN, EVEN) or (folder / "x" / "journal-1.jsonl").replace(
            folder / "journal-1.jsonl"), "from runs on 2 and 3 ranks"),
        (lambda folder: journals.write(folder, [in_no_turn(), in_no_turn()]), "in no regular order"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_says_why(tmp_path, change, reason):
    measured(tmp_path, EVEN, EVEN)
    change(tmp_path)
    with pytest.raises(NotMeasured, match=reason):
        read_run(tmp_path, 2)


@pytest.mark.parametrize(
    ("fields", "model", "unit", "rate"),
    [
        ({}, {}, "examples", 2 * 8 / 0.11),
        ({"tokens": 80}, {}, "tokens", 2 * 80 / 0.11),
        ({"models": 2}, {}, "examples", None),
        ({"models": 2, "loaded": 5}, {}, "examples", 2 * 5 / 0.11),
        ({"examples": 0}, {}, "examples", None),
    ],
)
def test_examples_are_counted_or_not_known(tmp_path, fields, model, unit, rate):
    run = measured(tmp_path, EVEN | fields, EVEN | fields, model=model)
    assert (run.unit, run.rate) == (unit, rate and pytest.approx(rate))
