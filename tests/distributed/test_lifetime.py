"""A process that finds another parent than the one that started it has come too late to be ended with it."""

import os
import subprocess
import sys

import pytest

from dpbook.distributed.lifetime import PARENT

CHILD = (
    "import os; from dpbook.distributed.lifetime import *; end_with_parent(); print(os.environ[PARENT], os.getpid())"
)


def child(parent):
    environment = {name: value for name, value in os.environ.items() if name != PARENT}
    if parent is not None:
        environment[PARENT] = str(parent)
    return subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_process_whose_parent_has_ended_before_it_could_ask_ends():
    late = child(os.getpid() + 1)
    assert (late.returncode, late.stdout, late.stderr) == (1, "", "the process that started this one has ended\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
@pytest.mark.parametrize("parent", [os.getpid(), None], ids=["the parent", "nobody"])
def test_a_process_that_its_parent_started_goes_on_and_is_the_parent_of_its_own(parent):
    named, own = child(parent).stdout.split()
    assert named == own
