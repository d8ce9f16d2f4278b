"""Runs of the scripts that readers take home: what happens to them from outside."""

import os
from itertools import count
from unittest.mock import patch

import torch
import torch.distributed as dist

CPU = torch.device("cpu")


def run_with_signal(script, owner, rank, number, after, options, device=CPU):
    """Run a script whose process is sent a signal in a step, the ``after``-th from its start, if it is of ``rank``.

    ``owner`` is the class or module that has the function ``train_step``.
    """
    calls, step = count(1), owner.train_step

    def counted(*arguments):
        if next(calls) == after and dist.get_rank() == rank:
            os.kill(os.getpid(), number)
        return step(*arguments)

    with patch.object(owner, "train_step", counted):
        return script.run(options, device)
