"""Is each mistake that only an accelerator shows found by its check, and does that pass what is right? One start.

A check says "well", or what is wrong.
"""

import contextlib
import os
import textwrap
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from inspect import getsource
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dpbook import collectives
from dpbook.book import sim
from dpbook.book.sim.streams import default_stream
from dpbook.core import DpbookError
from dpbook.ddp.emulated_link import SlowCall
from dpbook.ddp.reducer import Reducer
from dpbook.ranks import devices, execute, measure, messages, own_device
from dpbook.runs.trainer import Options
from dpbook.runs.trainer.__main__ import bind
from dpbook.runs.trainer.trainer import StepClock, Trainer
from tests.book.sim.paths import CPU, SHARES, SIM, SMALL, advanced, busy, clocks, link_call, losses, wrapped
from tests.book.sim.sim import needs_sim, refusal, stream_of
from tests.book.sim.test_device import read_after_reuse
from tests.scenarios import Scenarios, gathered

pytestmark = [*needs_sim, pytest.mark.proof]
scenario = Scenarios(sim.join)
WELL = "well"
LATE = 2.0
"""Seconds by which a collective is late where somebody waits for it: much more than a step takes."""
PATIENCE, IN_VAIN = timedelta(seconds=60), timedelta(seconds=1)
"""How long messages may wait for each other, and how long they may in a mutant."""


class Mutant(NamedTuple):
    """A function in which ``new`` stands for ``old``; ``check`` must find it."""

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    check: Callable[[str], str]


@cache
def _on_cpu(folder):
    return losses(Options(name="reference", out=folder, **SMALL), CPU)[0]


def trains(folder):
    found = losses(Options(name="mutant", out=folder, **SMALL), SIM)[0]
    return WELL if np.allclose(found, _on_cpu(folder), rtol=1e-4) else f"losses {found}"


@cache
def _bits_on_cpu():
    return wrapped("bucketed", CPU)


@contextlib.contextmanager
def late(group=None):
    """Collectives of the block begin when the step in it is over: at once if nobody waits for them, else too late."""
    stepped = threading.Event()
    stream_of(group or dist.group.WORLD).submit(lambda: stepped.wait(LATE))
    yield
    default_stream().submit(stepped.set)


def waits(folder):
    return WELL if wrapped("bucketed", SIM, late) == _bits_on_cpu() else "a gradient was read before it was summed"


def clocks_wait(folder):
    times, _ = clocks()
    return ", ".join(name for name, (seconds, kernels) in times.items() if seconds < SHARES[name] * kernels) or WELL


def link_waits(folder):
    call, computed = link_call()
    return WELL if call.begin >= computed else "the link carried what was not computed yet"


def messages_go(folder):
    world, group = dist.get_world_size(), dist.new_group(backend="simccl", timeout=PATIENCE)
    x = torch.ones(world, device="sim")
    with late(group):
        execute(collectives.ring(world), x, group)
    return WELL if x.tolist() == [world] * world else f"sums {x.tolist()}"


def goes_on(folder):
    """Seconds of patience: a host that waits goes on after them, or the mutant would take for ever."""
    goes_on, _ = advanced(folder, "zero1", PATIENCE.total_seconds())
    return WELL if goes_on else "the host has waited"


def memory_is_kept(folder):
    return (
        WELL
        if read_after_reuse(record=True) == ([1.0], [7.0])
        else "memory was handed out that another stream still reads"
    )


_groups = count()


def group_serves_both(folder):
    store = dist.PrefixStore(f"bound-{next(_groups)}", dist.distributed_c10d._get_default_store())
    rank, world = dist.get_rank(), dist.get_world_size()
    joining = partial(dist.init_process_group, store=store, rank=rank, world_size=world)
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # a machine of its own for each rank
    before = dist.group.WORLD  # keeps its connections until all have new ones
    dist.destroy_process_group()
    with patch.object(dist, "init_process_group", joining), patch.dict(os.environ, alone):
        device = bind()
    try:
        found = measure(None, (1024,), 1, device)
        return WELL if device == SIM and found.world == world else f"a sweep of {found.world} on {device}"
    finally:
        del before
        sim.join()


def steps_are_measured(folder):
    """The parts of a step, by events of its stream."""
    run = Trainer(Options(name="paced", out=folder, **SMALL), SIM)
    with sim.slower(1e-3), sim.watch() as spans:
        run.advance()
        return WELL if sum(run.step_clock.seconds()) >= 0.6 * busy(spans) else "the parts of a step are too short"


@cache
def mutants():
    from dpbook.book.sim import memory

    return [
        Mutant(
            "the batch stays on the CPU", Trainer.advance,
            "part.to(self.device, non_blocking=True)", "part", trains,
        ),
        Mutant("the model stays on the CPU", Trainer.__post_init__, ".to(self.device)", "", trains),
        Mutant("the loss is added up on the CPU", Trainer.advance, "device=self.device", "device='cpu'", trains),
        Mutant("the buckets lie on the CPU", Reducer._allocate, "device=first.device", "device='cpu'", trains),
        Mutant("nobody waits for a bucket", Reducer._receive, "bucket.handle.wait()", "pass", waits),
        Mutant("the clock is not synchronised", devices.now, 'device.type != "cpu"', "False", clocks_wait),
        Mutant("hooks see launches", devices.moment, 'device.type == "cpu"', "True", clocks_wait),
        Mutant(
            "a step is measured by the host", StepClock._mark, "moment(self._device)", "moment(torch.device('cpu'))",
            steps_are_measured,
        ),
        Mutant("the link charges at launch", SlowCall.__init__, 'tensor.device.type != "cpu"', "False", link_waits),
        Mutant("messages go one by one", messages.prepare, 'tensor.device.type == "cpu"', "True", messages_go),
        Mutant(
            "a message is added before it has come", messages._Batched._receive, "request.wait()", "pass", messages_go,
        ),
        Mutant(
            "a group for the accelerator alone", own_device,
            'f"cpu:gloo,{device.type}:{backend}"', "backend", group_serves_both,
        ),
        Mutant(
            "the host reads too early", Trainer.report,
            "shared.tolist()", "shared.to('cpu', non_blocking=True).tolist()", trains,
        ),
        Mutant("the host reads the loss in every step", Trainer.advance, "loss.detach()", "loss.item()", goes_on),
        Mutant(
            "the optimizer asks the host", Trainer.advance,
            "self.optimizer.step()", "self.optimizer.step() if self.norm > 0 else None", goes_on,
        ),
        Mutant("record_stream is forgotten", memory.lend, "stream != block.stream", "False", memory_is_kept),
    ]  # fmt: skip


@scenario
def the_checks_pass_what_is_right(rank, world, folder):
    for check in dict.fromkeys(mutant.check for mutant in mutants()):
        assert check(folder) == WELL, check


@scenario
def every_mutant_is_found(rank, world, folder):
    """On some rank at least; a mistake may show on one alone."""
    for mutant in mutants():
        assert set(gathered(attempt(mutant.name, folder))) != {WELL}, mutant.name


def attempt(name, folder):
    """Complaint of its check about a mutant; no work stays queued."""
    (mutant,) = (one for one in mutants() if one.name == name)
    with mutation(mutant.function, mutant.old, mutant.new), patch.dict(globals(), PATIENCE=IN_VAIN):
        try:
            return mutant.check(folder)
        except (DpbookError, RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            refusal(torch.accelerator.synchronize)


@contextlib.contextmanager
def mutation(function, old, new):
    """A function with another text in the place of one that it has once, for all who have it."""
    source = textwrap.dedent(getsource(function))
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {function}"
    changed = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), function.__globals__, changed)
    before, function.__code__ = function.__code__, changed[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    return scenario.run(3, str(tmp_path_factory.mktemp("runs")), timeout=240)


@pytest.mark.parametrize("name", scenario.names)
def test_scenario(failures, name):
    assert not failures[name], failures[name]
