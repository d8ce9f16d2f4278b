"""Checks on journals that are written by hand, for faults that scripts on a CPU cannot show."""

import torch

from dpbook.runs.audit.checks import CHECKS
from dpbook.runs.audit.checks.step import end
from dpbook.runs.audit.journals import RunJournals
from dpbook.runs.watching.journal import FINISHED_FILE
from tests.cases import each

PLACE = ["train.py", 7, "step()"]


def journal(updates=2, **changes):
    """The events of one rank; ``changes`` are of the events of a kind."""
    about = {
        "optimizer": 0, "names": ["w", "v"], "group": 3, "wrappers": ["DistributedDataParallel"],
        "replicas": 3, "sharded": [],
        "devices": ["cpu"], "unwrapped": [],
    }  # fmt: skip
    events = [{"kind": "optimizer", **about, **changes.get("optimizer", {})}]
    for update in range(1, updates + 1):
        plain = {
            "forward": {"rows": [f"{update}"], "random": "a", "drawn": False, "buffers": {}, "sync": True,
                        "wrapped": True, "loader": "", "object": 0, "infinite": "", "number": update,
                        "batch": ["train.py:5", 1, update, 9]},
            "used": {"forwards": [update]},
            "backward": {"losses": None, "value": 1.0, "sync": True, "line": "train.py:9"},
            "epoch": {"loader": "test", "object": 1, "share": 3, "examples": 9, "batches": 2, "part": None,
                      "sampler": "", "shuffle": False, "order": "a", "epoch": 0, "replicas": 3},
            "collective": {"name": "all_reduce", "shape": [2], "dtype": "float32", "graded": False},
            "step": {"optimizer": 0, "update": update, "gradients": {"w": "1", "v": "2"}, "infinite": [],
                     "own_infinite": [], "missing": [], "removed": [], "rates": [0.1],
                     "before": {"w": "0", "v": "0"} if update == 1 else None},
            "stepped": {"optimizer": 0, "update": update, "parameters": {"w": "3", "v": "4"}},
            "scaler": {"scale": 8.0},
        }  # fmt: skip
        events += [
            {"kind": kind, "place": PLACE, **fields, **changes.get(kind, {})}
            for kind, fields in plain.items()
            if kind not in ("scaler", "collective", "epoch") or kind in changes
        ]
    return tuple(events)


def result_of(name, *ranks, ended=""):
    return next(check for check in CHECKS if check.name == name).judge(RunJournals(ranks, ended=ended))


def test_a_mean_over_nothing_is_left_to_what_it_makes():
    """The mean of a rank whose targets are all ignored is 0/0, not a number."""
    losses = [[{"name": "NllLoss", "terms": terms, "divisor": terms, "mean": True}] for terms in (4.0, 0.0)]
    ranks = [journal(backward={"losses": each, "value": 1.0 if each[0]["terms"] else float("nan")}) for each in losses]
    assert result_of("mean", *ranks).status == "PASS"
    assert (result_of("finite", *ranks).status, result_of("finite", *ranks).rank) == ("FAIL", 1)


def test_losses_without_a_term_have_no_weights_to_compare():
    losses = [[{"node": "Sum", "terms": 0.0, "divisor": divisor, "mean": False, "shape": ()}] for divisor in (4.0, 8.0)]
    assert result_of("mean", *[journal(backward={"losses": each}) for each in losses]).status == "PASS"


@each(
    ("check", "kind", "usual", "odd", "tensor"),
    [
        ("scaler", "scaler", {}, {"scale": 4.0}, None),
        ("collectives", "collective", {}, {"name": "barrier"}, None),
        ("collectives", "collective", {}, {"shape": [3]}, None),
        ("unused", "step", {}, {"missing": ["v"]}, "v"),
        ("start", "step", {}, {"before": {"w": "0", "v": "5"}}, "v"),
        ("replicas", "stepped", {}, {"parameters": {"w": "9", "v": "4"}}, "w"),
        ("rates", "step", {}, {"rates": [0.2]}, None),
        ("finite", "step", {}, {"infinite": ["v"]}, "v"),
    ],
)
def test_the_rank_that_is_odd_is_named(check, kind, usual, odd, tensor):
    ranks = [journal(**{kind: usual}), journal(**{kind: usual}), journal(**{kind: odd})]
    assert result_of(check, *[journal(**{kind: usual})] * 3).status == "PASS"
    result = result_of(check, *ranks)
    assert (result.status, result.rank, result.tensor, result.place or PLACE) == ("FAIL", 2, tensor, PLACE)


def skipping(first, infinite=""):
    """A rank that skips the batch ``first``: its forward is in no backward, and the later ones are a batch ahead."""
    part = {"node": "Mean", "terms": 4.0, "divisor": 4.0, "mean": True, "shape": ()}
    events = [dict(event) for event in journal(4, backward={"losses": [part], "cleared": True})]
    forwards = [event for event in events if event["kind"] == "forward"]
    for event in forwards:
        loop, epoch, batch, length = event["batch"]
        event["batch"] = [loop, epoch, batch + (batch >= first), length]
    if first != NONE:
        forward = forwards[first - 1]
        unused = {**forward, "batch": ["train.py:5", 1, first, 9], "number": 9, "infinite": infinite}
        events.insert(events.index(forward), unused)
    return tuple(events)


NONE = 9
"""A batch that `skipping` does not reach."""


@each(("firsts", "ranks"), [((NONE, NONE, 2), "rank 2"), ((2, NONE, NONE), "rank 0"), ((NONE, 2, 2), "ranks 1, 2")])
def test_the_ranks_that_skip_a_batch_are_named(firsts, ranks):
    assert result_of("losses", *map(skipping, [NONE] * 3)).status == "PASS"
    result = result_of("losses", *map(skipping, firsts))
    assert (result.status, result.rank, result.update, result.place) == ("WARN", firsts.index(2), 2, PLACE)
    assert result.message.startswith(f"{ranks} skipped a batch that no backward uses")


def test_ranks_that_skip_a_batch_together_are_in_step():
    assert result_of("losses", *[skipping(2)] * 3).status == "PASS"


def test_more_forwards_of_one_rank_are_no_skipped_batch():
    """It prints the shape of an output before training, or uses an output without its gradient."""
    usual = skipping(NONE)
    forward = next(event for event in usual if event["kind"] == "forward")
    for batch in (None, forward["batch"]):
        odd = list(usual)
        odd.insert(usual.index(forward), {**forward, "number": 9, "batch": batch})
        assert result_of("losses", usual, tuple(odd), usual).status == "PASS"


def test_an_input_that_is_not_finite_is_a_warning_if_no_backward_uses_its_batch():
    result = result_of("finite", skipping(NONE), skipping(2, "input 1, of shape (4, 2), has a NaN"))
    assert (result.status, result.rank, result.update) == ("WARN", 1, 2)
    assert result.message.startswith("the model's input 1, of shape (4, 2), has a NaN, and no backward")
    masked = journal(forward={"infinite": "input 2, of shape (4, 4), has an infinity"})  # an attention mask
    assert result_of("finite", masked, masked).status == "PASS"


def test_frozen_weights_that_differ_are_a_warning():
    equal, other = ({"frozen": {"base": value, "norm": "1"}} for value in ("1", "2"))
    result = result_of("start", *[journal(step=equal)] * 3)
    assert (result.status, result.message) == ("PASS", "2 tensors, bit for bit; 2 more that are not trained")
    result = result_of("start", journal(step=equal), journal(step=equal), journal(step=other))
    assert (result.status, result.rank, result.tensor) == ("WARN", 2, "base")
    parts = {"optimizer": {"replicas": 1}}  # ranks hold parts of one replica
    assert result_of("start", *[journal(step=each, **parts) for each in (equal, other)]).status == "PASS"


def test_the_rates_that_are_shown_are_those_of_the_group_that_differs():
    usual, odd = ({"rates": [0.1, rate]} for rate in (0.5, 0.25))
    message = result_of("rates", journal(step=usual), journal(step=odd)).message
    assert message == "rank 0: 0.5; rank 1: 0.25 (parameter group 1)"


def test_two_ranks_on_one_gpu():
    separate = [journal(optimizer={"devices": [f"cuda:{rank}"]}) for rank in range(3)]
    same = [journal(optimizer={"devices": ["cuda:0"]})] * 3
    assert (result_of("devices", *separate).status, result_of("devices", *same).status) == ("PASS", "FAIL")
    assert result_of("devices", *[journal()] * 3) is None


def test_a_gradient_that_is_missing_everywhere_is_no_error_unless_the_run_failed_over_it():
    ranks = [journal(step={"missing": ["v"]})] * 3
    ended = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one"
    assert [result_of("unused", *ranks).status, result_of("unused", *ranks, ended=ended).status] == ["WARN", "FAIL"]
    result = result_of("unused", (), *ranks[1:], ended=ended)  # a rank that was ended before its first update
    assert (result.status, result.rank, result.tensor) == ("FAIL", 1, "v")


def test_examples_that_some_ranks_share_are_a_warning():
    ranks = [journal(4, forward={"rows": rows}) for rows in (["a", "b"], ["b", "c"], ["c", "d"])]
    for events in ranks:
        for number, event in enumerate(event for event in events if event["kind"] == "forward"):
            event["rows"] = [f"{number} {row}" for row in event["rows"]]
    assert result_of("examples", *ranks).status == "WARN"


def test_a_full_batch_that_all_ranks_have_is_not_judged():
    assert result_of("examples", *[journal(3, forward={"rows": ["a", "b"]})] * 3).status == "----"


def test_what_the_model_is_given_again_and_again_is_no_data():
    """A prompt beside the pictures that a rank reads is the same in every batch."""
    ranks = [journal(4) for _ in range(3)]
    for rank, events in enumerate(ranks):
        for number, event in enumerate(event for event in events if event["kind"] == "forward"):
            event["rows"] = [f"{number} {rank}"] if number % 2 else ["prompt"]
    assert result_of("examples", *ranks).status == "PASS"


def test_parts_of_a_replica_may_read_the_same():
    ranks = [journal(3, optimizer={"replicas": 1}, forward={"rows": ["a"]})] * 3
    assert result_of("examples", *ranks).status == "----"


def test_infinite_gradients_are_expected_under_a_scaler():
    assert result_of("finite", *[journal(scaler={}, step={"infinite": ["w"]})] * 3).status == "PASS"


@each("size", [0, 1, 2])
def test_a_rank_that_is_in_no_group_of_all_is_named(size):
    ranks = [journal(), journal(optimizer={"group": size}), journal()]
    assert result_of("group", *[journal()] * 3).status == "PASS"
    assert (result_of("group", *ranks).status, result_of("group", *ranks).rank) == ("FAIL", 1)


def test_of_a_gradient_that_is_infinite_everywhere_the_rank_is_named_whose_own_was():
    ranks = [journal(step={"infinite": ["v"], "own_infinite": separate}) for separate in ([], [], ["v"])]
    result = result_of("finite", *ranks)
    assert (result.status, result.rank, "on this rank alone" in result.message) == ("FAIL", 2, True)


def test_an_evaluation_that_counts_examples_twice_is_a_warning():
    of_ranks = {"PASS": (3, 3, 3), "WARN": (4, 4, 4), "----": (9, None, 9)}
    for status, shares in of_ranks.items():
        result = result_of("evaluation", *[journal(epoch={"share": share}) for share in shares])
        assert result.status == status
    assert "3 of 9 examples are left out" in result_of("evaluation", *[journal(epoch={"share": 2})] * 3).message
    rest = {"kind": "epoch", "loader": "rest", "object": 2, "share": None, "examples": 3, "place": PLACE}
    assert result_of("evaluation", *[(*journal(epoch={"share": 2}), rest)] * 3).status == "PASS"
    assert (
        result_of("evaluation", *[journal(epoch={"share": share, "examples": 8}) for share in (3, 3, 2)]).status
        == "PASS"
    )
    trained_on = journal(epoch={"share": 4, "loader": "", "object": 0})
    assert result_of("evaluation", *[trained_on] * 3) is None


@each(
    ("wrappers", "calls", "begun", "status"),
    [
        (["OptimizedModule"], 3, 0.95, "WARN"),
        (["OptimizedModule"], 3, 0.2, "PASS"),
        (["OptimizedModule"], 1, 1.0, "PASS"),
        (["DistributedDataParallel"], 3, 0.95, None),
    ],
)
def test_a_compiled_step_whose_all_reduces_begin_at_its_end(wrappers, calls, begun, status):
    sent = {"sent": {"all_reduces": calls, "begun": begun}}
    result = result_of("overlap", *[journal(optimizer={"wrappers": wrappers}, stepped=sent)] * 3)
    assert (result and result.status) == status


def test_a_gradient_that_comes_twice_is_reported_with_the_cure():
    ranks = [journal(backward={"at": 1.0})] * 3
    result = result_of(
        "twice", *ranks, ended="RuntimeError: Expected to mark a variable ready only once. This error is"
    )
    assert (result.status, "use_reentrant=False" in result.message, result.place) == ("FAIL", True, PLACE)
    assert result_of("twice", *ranks) is None


@each("check", [check.name for check in CHECKS])
def test_nothing_seen_passes_nothing(check):
    result = result_of(check, (), (), ())
    assert result is None or result.status == "----"


def test_a_rank_that_was_killed_is_reported_with_what_the_ranks_held():
    ended = "rank 1 died: killed by SIGKILL\na line of no interest\nmemory when last sampled: rank 0 used 3.0 GiB"
    end = result_of("end", journal(), journal(), ended=ended)
    assert (end.status, end.message) == (
        "FAIL",
        "rank 1 died: killed by SIGKILL; memory when last sampled: rank 0 used 3.0 GiB",
    )
    assert result_of("end", journal(), journal()) is None


def test_a_crash_has_its_rank_and_the_innermost_line_of_the_script():
    trace = [("train.py", 9, "step(x)"), ("model.py", 4, "return f(x)"), (torch.__file__, 7, "raise")]
    lines = [f'  File "{file}", line {line}, in f\n    {text}\n    ^^^' for file, line, text in trace]
    ended = "\n".join(["rank 2 failed first: ValueError: no", "", "Traceback (most recent call last):", *lines])
    end = result_of("end", *[journal()] * 3, ended=ended)
    assert (end.rank, end.place) == (2, ["model.py", 4, "return f(x)"])


def test_inside_join_the_updates_of_each_entry_are_compared():
    """Rank 1 has one batch fewer in the first epoch: its second update is the third of rank 0."""

    def steps(*numbers):
        of_one = {"optimizer": 0, "gradients": {}, "place": None}
        for number in numbers:
            yield {"kind": "step", "update": number, **of_one}
            yield {"kind": "stepped", "optimizer": 0, "update": number, "parameters": {}}

    join = {"kind": "join"}
    optimizer = {"kind": "optimizer", "optimizer": 0, "names": [], "sharded": []}
    ranks = (optimizer, join, *steps(1, 2), join, *steps(3)), (optimizer, join, *steps(1), join, *steps(2))
    numbers = [[step["update"] for step in update.steps] for update in RunJournals(ranks).updates]
    assert numbers == [[1, 1], [3, 2]]


def test_a_limit_on_updates_that_ends_a_rank_inside_join_is_no_failure(tmp_path):
    ranks = ({"kind": "join"},), ({"kind": "join"},)
    run = RunJournals(ranks, tmp_path, "rank 1 finished (status 0) while rank 0 was in all_reduce")
    assert end.judge(run).status == "FAIL"
    (tmp_path / FINISHED_FILE.format(1)).touch()
    assert end.judge(run).status == "----"
