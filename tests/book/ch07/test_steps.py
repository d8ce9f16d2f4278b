"""Do the steps of exercise 07.3 have the fault they are said to have, in the measure that the exercise states?"""

from dpbook.book.ch07 import FAULTS, sample
from tests.cases import each, refuses

SEEDS = range(40)


def of_rank_0(step, kind):
    return [span for span in step.of(0).spans if span.kind == kind]


def launching(step):
    return step.busy("launch") / step.busy("computation")


def lead(step):
    """Distance of the slowest rank from the next one, in computation."""
    *_, second, slowest = sorted(step.busy("computation", rank) for rank in step.ranks)
    return slowest / second


def largest(step):
    durations = [span.duration for span in of_rank_0(step, "communication")]
    return durations[-1] / sum(durations)


def early(step):
    """Whether a message begins before the last forward does."""
    forwards = [span for span in of_rank_0(step, "computation") if span.name == "forward"]
    return of_rank_0(step, "communication")[0].start < forwards[-1].start


MARKS = {
    "launch-bound": lambda step: launching(step) > 1,
    "straggler": lambda step: lead(step) >= 1.4,
    "extra syncs": early,
    "blocking hook": lambda step: step.hidden() == 0 and launching(step) < 1,
    "giant bucket": lambda step: largest(step) > 0.5,
}


@each("fault", FAULTS)
def test_a_step_has_its_fault_and_no_other(fault):
    for seed in SEEDS:
        step = sample(fault, seed)
        found = [name for name, mark in MARKS.items() if mark(step)]
        assert found == ([] if fault == "healthy" else [fault]), f"seed {seed}"


@each("fault", FAULTS)
def test_what_is_no_fault_is_well_away_from_one(fault):
    for seed in SEEDS:
        step = sample(fault, seed)
        assert fault == "launch-bound" or launching(step) < 0.5
        assert fault == "straggler" or lead(step) <= 1.05 + 1e-9
        assert fault != "healthy" or step.overlap() > 0.5


def test_equal_seeds_are_one_model_on_one_machine():
    steps = [sample(fault, 3) for fault in FAULTS]
    assert len({step.ranks for step in steps}) == 1
    assert len({len(of_rank_0(step, "communication")) for step in steps if not early(step)}) == 1


test_bad_arguments_are_named = refuses((lambda: sample("slow"), "fault"), (lambda: sample("healthy", -1), "seed"))
