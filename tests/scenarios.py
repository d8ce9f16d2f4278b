"""Scenarios: tests that assert in the ranks themselves. One start of the ranks runs all those of a test module."""

import importlib
import traceback

import pytest
import torch
import torch.distributed as dist

from dpbook.ranks import start


class Scenarios:
    """Functions that assert in a rank; it is the decorator that adds one, and has a name in its test module.

    Each rank first calls ``prepare``. On several ranks a scenario gets its rank and the world before other arguments.
    """

    def __init__(self, prepare=lambda: None):
        self.functions, self.prepare = [], prepare

    def __call__(self, function):
        self.functions.append(function)
        return function

    @property
    def names(self):
        return [function.__name__ for function in self.functions]

    def run(self, world, *arguments, timeout=120):
        """Return for each scenario, by name, the tracebacks of the ranks that it failed on, one after another."""
        module = importlib.import_module(self.functions[0].__module__)
        own_name = next(name for name, value in vars(module).items() if value is self)
        ranks = [(module.__name__, own_name, rank, world, *arguments) for rank in range(world)]
        by_rank = start(_run_all, ranks, timeout=timeout, echo=False)
        return {name: "".join(tracebacks[name] for tracebacks in by_rank) for name in self.names}

    def tests(self, *worlds, folder=False, timeout=120):
        """Return a fixture and a test, which runs all scenarios in each of the worlds, and has an item for each.

        With a ``folder`` the scenarios get the path of a temporary one as their last argument.
        """

        @pytest.fixture(scope="module", params=worlds)
        def failures(request, tmp_path_factory):
            arguments = [str(tmp_path_factory.mktemp("ranks"))] if folder else []
            return self.run(request.param, *arguments, timeout=timeout)

        @pytest.mark.processes
        @pytest.mark.parametrize("name", self.names)
        def test_scenario(failures, name):
            assert not failures[name], failures[name]

        return failures, test_scenario


def _run_all(module, name, rank, world, *arguments):
    torch.set_num_threads(1)
    scenarios = getattr(importlib.import_module(module), name)
    scenarios.prepare()
    arguments = (rank, world, *arguments) if world > 1 else arguments
    return {function.__name__: _traceback(function, arguments) for function in scenarios.functions}


def _traceback(function, arguments):
    try:
        function(*arguments)
    except BaseException as error:  # a script's SystemExit and the failure of `pytest.raises` are no Exception
        frames = error.__traceback__.tb_next  # without the frame of this function
        return "".join(traceback.TracebackException(type(error), error, frames, capture_locals=True).format())
    return ""


def gathered(value):
    """Return the values of all ranks, on each rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
