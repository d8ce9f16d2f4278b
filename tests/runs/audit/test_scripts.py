"""Is every fault named on an unchanged script, with its rank and line, and no right script accused? On three ranks."""

import functools

import pytest

from dpbook.ranks import start
from dpbook.runs.audit.audited_run import judge_run
from dpbook.runs.audit.journals import read_journals
from dpbook.runs.audit.resume import resume_findings
from tests.cases import each
from tests.runs.audit.on_ranks import run_jobs
from tests.runs.audit.scripts import DOUBTFUL, HEAD, RESUMED, RIGHT, UNSEEN, WRONG

WORLD = 3
FORGOTTEN = ["", "optimizer", "rates", "random", "examples", "scheduler"]
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder in which all scripts ran, recorded, in one start of the ranks: each in a folder of its name."""
    home = tmp_path_factory.mktemp("audit")
    texts = RIGHT | UNSEEN | {name: text for name, (text, _) in (WRONG | DOUBTFUL).items()}
    jobs = [(_written(home / name, text), [], str(home / name), {"replay": 1}) for name, text in texts.items()]
    restarts = home / "restarts"
    script = _written(restarts, RESUMED)
    out, resumed = ["--out", str(restarts)], {"updates": 2, "keep": 2, "state": True}
    for name, options, wanted in [
        ("whole", [], {"updates": 4, "keep": 4, "state": True}),
        ("first", out, {"updates": 2, "saving": True}),
        *((f"without {forgotten}", [*out, "--resume", "--forget", forgotten], resumed) for forgotten in FORGOTTEN),
    ]:
        (restarts / name).mkdir()
        jobs.append((script, options, str(restarts / name), wanted))
    start(run_jobs, [(rank, jobs) for rank in range(WORLD)], timeout=600)
    return home


def _written(home, text):
    home.mkdir()
    (home / "train.py").write_text(HEAD + text)
    return str(home / "train.py")


@functools.cache
def lines_of(folder, name):
    return {line.name: line for line in judge_run(read_journals(folder / name, WORLD), replay=1)}


def with_status(lines, status):
    return {name for name, line in lines.items() if line.result.status == status}


@each("name", RIGHT)
def test_a_right_script_is_not_accused(folder, name):
    lines = lines_of(folder, name)
    assert with_status(lines, "FAIL") | with_status(lines, "WARN") == set()


@each("name", RIGHT)
def test_the_gradient_of_a_right_script_is_the_big_batchs(folder, name):
    results = [
        line.result for line in judge_run(read_journals(folder / name, WORLD), replay=1) if line.name == "replay"
    ]
    assert {each.status for each in results} == {"PASS"}


@each("name", UNSEEN)
def test_a_gradient_that_was_not_seen_is_not_judged(folder, name):
    lines = lines_of(folder, name)
    assert with_status(lines, "FAIL") | with_status(lines, "WARN") == set()
    assert lines["replay"].result.status == "----"


@each(("name", "check"), [(name, check) for name, (_, check) in WRONG.items()])
def test_the_cause_of_a_fault_is_named_first_and_the_rest_follows_from_it(folder, name, check):
    lines = lines_of(folder, name)
    failed = [line for line in lines.values() if line.failed]
    assert failed[0].name == check
    assert {line.because is None for line in failed[1:]} <= {False}
    assert with_status(lines, "WARN") <= {line.name for line in lines.values() if line.because}


@each(("name", "checks"), [(name, checks) for name, (_, checks) in DOUBTFUL.items()])
def test_what_may_be_meant_so_is_a_warning(folder, name, checks):
    lines = lines_of(folder, name)
    assert (with_status(lines, "FAIL"), with_status(lines, "WARN")) == (set(), checks)


@each("name", ["a wrapper inside", "compiled"])
def test_a_forward_goes_through_a_wrapper_that_is_inside_or_compiled(folder, name):
    assert lines_of(folder, name)["sync"].result.status == "PASS"


def test_a_forward_past_the_wrapper_passes_nothing_about_averaging(folder):
    assert lines_of(folder, "past its wrapper")["sync"].result.status == "----"


def test_a_term_that_weighs_more_weighs_so_much_more_than_the_mean_of_all(folder):
    """Three ranks with equally many terms, one with twice the loss: weights 1, 2, 1, and 2 is 1.5 times their mean."""
    message = lines_of(folder, "a loss twice on a rank")["mean"].result.message
    assert message.endswith("of 4 terms divide by 4 2 4: one weighs up to 1.50 times too much")


@each(
    ("name", "counts"),
    [
        ("a backward on one rank", "call backward 1 0 0 times"),
        ("a micro-batch left out on one rank", "call backward 2 1 2 times"),
        ("a term on one rank", "have 2 1 1 means or sums"),
    ],
)
def test_losses_that_differ_from_rank_to_rank_are_counted(folder, name, counts):
    assert counts in lines_of(folder, name)["losses"].result.message


def test_a_divisor_that_is_no_means_is_said(folder):
    message = lines_of(folder, "micro-batches divided by another number")["mean"].result.message
    assert message.endswith("each divided by 6: 1.333 times their mean")


def test_a_rank_that_does_not_clear_its_gradients_is_named(folder):
    line = lines_of(folder, "gradients cleared on one rank")["losses"].result
    assert (line.message.partition(" did")[0], line.update) == ("ranks 1, 2", 2)


def test_a_norm_of_its_own_on_each_rank_is_named(folder):
    message = lines_of(folder, "clipping to another norm on each rank")["gradients"].result.message
    assert message.endswith("the ranks clip to 0.02 0.04 0.06")


def test_losses_of_other_parts_on_each_rank_pass_no_mean(folder):
    assert lines_of(folder, "a term on one rank")["mean"].result.status == "----"


@each(
    ("name", "rank", "text"),
    [
        ("a judge past its wrapper", 1, "both = judge.module(torch.cat([x, fake.detach()]))"),
        ("no sampler", 1, "loss = F.cross_entropy(model(x), y)"),
        ("a NaN", 1, "loss.backward()"),
        ("clipping on one rank", 0, "if rank == 0: clip_grad_norm_(model.parameters(), 0.05)"),
        ("clipping to another norm on each rank", 1, "clip_grad_norm_(model.parameters(), 0.02 * (1 + rank))"),
        ("a rank left out", 2, "optimizer.step()"),
        ("no set_epoch", 0, "for x, y in loader:"),
        ("a flag after forward", 0, "loss = F.cross_entropy(model(x), y) / 2"),
        ("clipping before averaging", 1, "clip_grad_norm_(model.parameters(), 0.05)"),
        ("own tokens, masked by hand", 1, "loss.backward()"),
    ],
)
def test_a_failure_has_its_rank_and_line(folder, name, rank, text):
    first = next(line for line in lines_of(folder, name).values() if line.failed)
    assert (first.result.rank, first.result.place[2]) == (rank, text)
    assert (folder / name / "train.py").read_text().splitlines()[first.result.place[1] - 1].strip() == text


@each(
    ("name", "text"),
    [
        ("all in no_sync", "this rank's own gradient"),
        ("own tokens", "each rank's mean has the same weight"),
        ("clipping before averaging", "each rank clipped its own gradient"),
        ("gradients added", "3 times as long"),
        ("gradients divided twice", "3 times too short"),
        ("a sum's mean, divided twice", "3 times too short"),
        ("a loss times the ranks", "the loss is multiplied by 3, the number of ranks"),
        ("a loss times the ranks, clipped", "3 times as long"),
        ("two losses times the ranks", "3 times as long"),
        ("a sum over the count of all", "the loss is divided by 3, the number of ranks"),
        ("gradients added, then clipped", "the ranks' gradients are added"),
        ("micro-batches added", "the means of 2 micro-batches are added"),
        (
            "gradients cleared in each micro-batch",
            "the gradients of 1 of its 2 micro-batches are cleared before the step",
        ),
        ("a step after the first micro-batch", "1 micro-batch, each divided as if there were 3: 0.3333 times"),
        ("a rank left out", "the gradient of rank 2 is missing from it"),
        ("noise on a gradient that it averages itself", "no mistake that was tried explains it"),
        ("noise on the gradient", "backward leaves the big batch's gradient, and the script changes it"),
        ("gradients sent in 16 bits", "DDP's communication hook fp16_compress_hook"),
    ],
)
def test_a_replay_says_what_the_gradient_is_instead(folder, name, text):
    assert text in lines_of(folder, name)["replay"].result.message


@each(
    ("name", "text"),
    [
        ("batch norm", "statistics over each rank's own examples"),
        ("pairs of one rank", "depends on the other examples of its rank's batch"),
        ("batch statistics in the loss", "depends on the other examples of its rank's batch"),
        ("the hardest examples", "selects examples by comparing them"),
        ("a gather with a backward of its own", "whether the script's own gather"),
        ("a metric that is gathered", "whether the loss uses it cannot be seen"),
        ("gathered without gradient", "copies of the others' that have no gradient"),
        ("gathered without gradient, its own put back", "copies of the others' that have no gradient"),
    ],
)
def test_a_loss_that_couples_examples_has_no_big_batch_that_a_replay_could_judge(folder, name, text):
    coupled = lines_of(folder, name)["coupled"]
    assert (coupled.claim, coupled.result.status) == ("the gradient of update 1 is the big batch's", "----")
    assert text in coupled.result.message
    assert lines_of(folder, name)["replay"].claim == "the gradient of update 1 is the mean of the ranks'"


def test_where_the_gather_has_a_gradient_the_big_batch_is_judged(folder):
    for name in ("gathered with its gradient", "keys of a teacher"):
        assert "coupled" not in lines_of(folder, name)


@each(
    ("name", "check", "text"),
    [
        ("the same noise on all ranks", "examples", "fake = maker(torch.randn(len(x), 4, generator=noise))"),
        ("a scheduler for each micro-batch", "scheduler", "scheduler.step()"),
        ("another split on each rank", "parts", "data, rest = torch.utils.data.random_split("),
    ],
)
def test_the_line_is_the_guilty_one(folder, name, check, text):
    result = lines_of(folder, name)[check].result
    assert result.place[2].startswith(text)
    if check == "scheduler":  # of two calls with the same text: that of the micro-batch
        script = (folder / name / "train.py").read_text().splitlines()
        assert script[result.place[1] - 2].strip() == "if not last:"
        assert "once for each micro-batch" in result.message


def test_a_split_of_its_own_says_what_the_ranks_share(folder):
    """72 of 96 examples each, by chance: both have 72 * 72 / 96 = 54 of a union of 90."""
    message = lines_of(folder, "another split on each rank")["parts"].result.message
    assert 0.45 < float(message.partition("share about ")[2].partition("%")[0]) / 100 < 0.75
    assert "share" not in lines_of(folder, "divided twice")["parts"].result.message


def test_what_was_not_seen_is_not_passed(folder):
    result = lines_of(folder, "plain")["epochs"].result
    assert (result.status, "has 8 batches" in result.message) == ("----", True)
    assert lines_of(folder, "a sampler of its own")["epochs"].result.status == "PASS"


@each(("forgotten", "status"), [(forgotten, "FAIL" if forgotten else "PASS") for forgotten in FORGOTTEN])
def test_a_restart_that_forgets_is_told_what(folder, forgotten, status):
    whole, resumed = (read_journals(folder / "restarts" / name, WORLD) for name in ("whole", f"without {forgotten}"))
    lines = resume_findings(whole, resumed)
    causes = [line.name for line in lines if line.failed and line.because is None]
    seen_in = "rates" if forgotten == "scheduler" else forgotten  # at its second update, in this script
    assert causes == ([f"resume {seen_in}"] if forgotten else [])
    if forgotten == "scheduler":
        assert next(line for line in lines if line.name == "resume rates").result.update == 2
    assert next(line for line in lines if line.name == "resume end").result.status == status


def test_on_three_ranks_a_right_restart_adds_in_another_order(folder):
    """The buckets of torch's DDP follow the first backward of a process: so bits are not asked for at the end."""
    whole, resumed = (read_journals(folder / "restarts" / name, WORLD) for name in ("whole", "without "))
    end = next(line for line in resume_findings(whole, resumed) if line.name == "resume end").result
    assert "bit for bit" in end.message or "another order of additions" in end.message


def test_a_restart_is_not_judged_by_a_run_that_has_ended_before(folder):
    first, resumed = (read_journals(folder / "restarts" / name, WORLD) for name in ("first", "without rates"))
    lines = resume_findings(first, resumed)
    assert [line.result.status for line in lines] == ["PASS"] + ["----"] * 5
    assert all("--whole" in line.result.message for line in lines[1:])
