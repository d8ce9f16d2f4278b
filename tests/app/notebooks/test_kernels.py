"""Is a kernel that is forked like one that is started by itself, and does it end as it should?"""

import ast
import os
from pathlib import Path

import pytest

from dpbook.app.lab import jupyter
from dpbook.app.notebooks import kernels
from dpbook.core.fork_server import starter
from tests.runs.launch.restarts import wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(starter.START_METHOD != "fork", reason="elsewhere nothing is forked from a server"),
]

ABOUT_ITSELF = """
import matplotlib, multiprocessing, os, random, signal, sys, threading
import numpy as np, torch
from matplotlib import pyplot
pyplot.figure()
{
    "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(), "argv": len(sys.argv),
    "folder": os.getcwd(),
    # torch.distributed.nn of torch 2.9 adds a temporary folder
    "path": sorted({each for each in sys.path if not os.path.basename(each).startswith("tmp")}),
    "environment": {name: value for name, value in os.environ.items() if name not in IGNORED},
    "session": os.getsid(0) == os.getpid() == os.getpgid(0), "backend": matplotlib.get_backend(),
    "process": multiprocessing.current_process().name, "parent": multiprocessing.parent_process(),
    "child": multiprocessing.Process().name,
    "start method": multiprocessing.get_start_method(allow_none=True), "threads of torch": torch.get_num_threads(),
    "threads": sorted({type(each).__name__ for each in threading.enumerate()} - {"ParentPollerUnix"}),
    "signals": [str(signal.getsignal(each))[:20] for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "recursion": sys.getrecursionlimit(), "figures": pyplot.get_fignums(), "input": sys.stdin.read(),
}
"""
IGNORED = ("PYTEST_CURRENT_TEST", "JPY_PARENT_PID", "JPY_SESSION_NAME", starter.SHARED_SERVERS)
DRAWN = "import random, numpy, torch\nrandom.random(), numpy.random.rand(), torch.rand(1).item()"


@pytest.fixture(scope="module", autouse=True)
def a_server_for_all():
    """With the environment that validation gives to notebooks."""
    with kernels.shared(jupyter.environment(os.environ)) as environment, pytest.MonkeyPatch.context() as patch:
        for name, told in environment.items():
            patch.setenv(name, told)
        yield


@pytest.fixture
def kernel(tmp_path):
    kernel = kernels.Kernel(tmp_path, 120)
    yield kernel
    kernel.stop()


def value(client, code):
    """Value of the last line of ``code``, as the kernel prints it, or the name of the error."""
    found = {}

    def keep(message):
        content = message["content"]
        if message["msg_type"] == "error":
            found["value"] = content["ename"]
        if message["msg_type"] == "execute_result":
            found["value"] = ast.literal_eval(content["data"]["text/plain"])

    client.execute_interactive(code, output_hook=keep, timeout=120)
    return found["value"]


def test_it_says_of_itself_what_a_kernel_started_by_itself_says(kernel, tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(tmp_path))
    try:
        code = ABOUT_ITSELF.replace("IGNORED", repr(IGNORED))
        ours, own = value(kernel.client, code), value(client, code)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    for about, said in own.items():
        assert ours[about] == said, about
    assert ours.keys() == own.keys()


def test_each_draws_numbers_of_its_own(kernel, tmp_path):
    other = kernels.Kernel(tmp_path, 120)
    drawn = [value(each.client, DRAWN) for each in (kernel, other)]
    other.stop()
    assert not set(drawn[0]) & set(drawn[1])


def test_an_interrupt_ends_a_cell_and_not_the_kernel(kernel, tmp_path):
    # Many short sleeps: a signal between Python's last look for one and the call of the system ends no sleep.
    code = "import time\nopen('begun', 'w').close()\nfor _ in range(60_000):\n    time.sleep(0.01)"
    sleeping = kernel.client.execute(code, stop_on_error=False)  # or a cell sent soon after it may not be run
    wait_until((tmp_path / "begun").exists)
    kernel.interrupt()
    replies = iter(lambda: kernel.client.get_shell_msg(timeout=120), None)
    reply = next(reply for reply in replies if reply["parent_header"]["msg_id"] == sleeping)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert value(kernel.client, "1 + 1") == 2
    assert kernel.is_alive()


def test_one_that_dies_is_seen_to_be_dead(kernel):
    kernel.client.execute("import os\nos._exit(3)")
    assert kernel._running.wait(120)
    assert not kernel.is_alive()


def test_what_it_has_started_ends_with_it(tmp_path):
    kernel = kernels.Kernel(tmp_path, 120)
    process = value(kernel.client, "import subprocess\nsubprocess.Popen(['sleep', '600']).pid")
    command = Path(f"/proc/{process}/cmdline")
    assert command.read_bytes()
    kernel.stop()
    wait_until(lambda: not command.exists() or not command.read_bytes())  # empty where nobody asks how it ended


def test_it_ends_when_it_is_stopped_and_leaves_no_file(tmp_path):
    kernel = kernels.Kernel(tmp_path, 120)
    process = value(kernel.client, "import os\nos.getpid()")
    kernel.client.execute("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    folder = kernel._folder
    kernel.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not folder.exists()
