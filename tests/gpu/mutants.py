"""Mistakes that only an accelerator shows, each with the check of the proof that finds it.

A mutant is a function of the project in which another text stands for one of its own.
"""

import contextlib
import textwrap
from collections.abc import Callable
from datetime import timedelta
from inspect import getsource
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from dpbook.book.sim import memory
from dpbook.ddp.emulated_link import SlowCall
from dpbook.ddp.reducer import Reducer
from dpbook.ranks import devices, messages, own_device
from dpbook.runs.trainer.trainer import Trainer
from dpbook.runs.watching.step_spans import StepSpans
from dpbook.runs.watching.update_marks import UpdateMarks
from tests.gpu import accelerator, clock, measuring, wrappers
from tests.gpu.checks import CHECKS, all_of, attempt

TRAINS = measuring.the_training_program_trains_as_on_the_cpu
EVENTS = measuring.a_watched_step_records_as_many_events_for_any_model
GOES_ON = measuring.the_host_goes_on_between_reports
CLOCKS = measuring.clocks_measure_kernels_and_not_launches
LINK = measuring.an_emulated_link_carries_what_has_been_computed
BUCKETS = wrappers.gradients_wait_for_their_sum
MESSAGES = wrappers.messages_of_a_round_go_together
GROUPS = measuring.the_group_serves_both_devices
MEMORY = clock.memory_goes_to_the_next_owner_at_once


class Mutant(NamedTuple):
    name: str
    function: Callable[..., Any]
    old: str
    new: str
    check: Callable[..., Any]


MUTANTS = [
    Mutant(
        "the batch stays on the CPU", Trainer.loss_of,
        "part.to(self.device, non_blocking=True)", "part", TRAINS,
    ),
    Mutant("the model stays on the CPU", Trainer.__post_init__, ".to(self.device)", "", TRAINS),
    Mutant("the loss is added up on the CPU", Trainer.advance, "device=self.device", "device='cpu'", TRAINS),
    Mutant("the buckets lie on the CPU", Reducer._allocate, "device=first.device", "device='cpu'", TRAINS),
    Mutant(
        "the host reads too early", Trainer.report,
        "shared.tolist()", "shared.to('cpu', non_blocking=True).tolist()", TRAINS,
    ),
    Mutant(
        "a span begins when the host gets there", StepSpans.open, "moment(self.device)", "moment(torch.device('cpu'))",
        TRAINS,
    ),
    Mutant(
        "every gradient records an event", UpdateMarks._ready, "self._ready_gradients == self._expected_gradients",
        "True", EVENTS,
    ),
    Mutant(
        "the journal waits for the device", UpdateMarks._write, "not event.query()",
        "not (event.synchronize(), True)[1]", GOES_ON,
    ),
    Mutant("the host reads the loss in every step", Trainer.advance, "loss.detach()", "loss.item()", GOES_ON),
    Mutant(
        "the optimizer asks the host", Trainer.advance,
        "self.optimizer.step()", "self.optimizer.step() if self.norm > 0 else None", GOES_ON,
    ),
    Mutant("the clock is not synchronised", devices.now, 'device.type != "cpu"', "False", CLOCKS),
    Mutant("hooks see launches", devices.moment, 'device.type == "cpu"', "True", CLOCKS),
    Mutant("the link charges at launch", SlowCall.__init__, 'tensor.device.type != "cpu"', "False", LINK),
    Mutant(
        "a group for the accelerator alone", own_device,
        'f"cpu:gloo,{device.type}:{backend}"', "backend", GROUPS,
    ),
    Mutant("record_stream is forgotten", memory.lend, "stream != block.stream", "False", MEMORY),
    Mutant("nobody waits for a bucket", Reducer._receive, "bucket.handle.wait()", "pass", BUCKETS),
    Mutant("messages go one by one", messages.prepare, 'tensor.device.type == "cpu"', "True", MESSAGES),
    Mutant("a message is added before it has come", messages._Batched._receive, "request.wait()", "pass", MESSAGES),
]  # fmt: skip


def outcome_on_all_ranks(mutant, gpu):
    """Return what came of its check on the ranks, which wait for each other no longer than a second."""
    impatient = patch.object(accelerator, "PATIENCE", 1.0), patch.object(wrappers, "PATIENCE", timedelta(seconds=1))
    with mutation(mutant), impatient[0], impatient[1]:
        found = attempt(CHECKS[mutant.check.__name__], gpu)
    with contextlib.suppress(RuntimeError):  # no work stays queued
        torch.accelerator.synchronize()
    return all_of(gpu.agree(found))


@contextlib.contextmanager
def mutation(mutant):
    """Put the changed function in the place of its own, for all who have it."""
    function, source = mutant.function, textwrap.dedent(getsource(mutant.function))
    assert source.count(mutant.old) == 1, f"{mutant.old!r} is {source.count(mutant.old)} times in {function}"
    changed = {}
    exec("from __future__ import annotations\n" + source.replace(mutant.old, mutant.new), function.__globals__, changed)
    before, function.__code__ = function.__code__, changed[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before


def tried(kind, world):
    """Return the mutants whose check is made with so many ranks."""
    return [mutant for mutant in MUTANTS if not CHECKS[mutant.check.__name__].why_not(kind, world)]


def everything(kind):
    """Return the outcome of the check of every mutant that is tried, in a rank of `dpbook.ranks.start`."""
    torch.set_num_threads(1)
    gpu = accelerator.join(kind)
    return {mutant.name: outcome_on_all_ranks(mutant, gpu) for mutant in tried(kind, gpu.world)}
