"""Does a rank that is asked to end leave its stack, and behave for the rest as if nobody watched it?"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from dpbook.core import checkout

HEAD = """
import os, signal, sys, time
from pathlib import Path
from dpbook.runs.launch.rank_evidence import Evidence
folder = Path(sys.argv[1])
stack = open(folder / "stack", "w")
Evidence(folder, 0, stack).watch()
def ask(process):
    os.kill(process, signal.SIGTERM)
"""
FORKED = """
begun, begins = os.pipe()
child = os.fork()
if not child:
    os.write(begins, b"+")
    time.sleep(60)
os.read(begun, 1)
ask(child)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
time.sleep(0.2)
print(status, (folder / "stack").read_text() == "")
"""
ANSWERS = """
signal.signal(signal.SIGTERM, lambda number, frame: print("noted"))
ask(os.getpid())
until = time.time() + 60
while not (folder / "stack").read_text() and time.time() < until:
    time.sleep(0.05)
print("goes on")
"""
HANDLES = """
def look_up():
    try:
        {}["label"]
    except KeyError:
        ask(os.getpid())
        time.sleep(60)
def main():
    look_up()
main()
"""
ASYNCHRONOUS = """
import asyncio
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ask(os.getpid())
    await asyncio.wait_for(stop.wait(), 60)
    while not (folder / "stack").read_text():
        await asyncio.sleep(0.05)
    print("goes on")
asyncio.run(main())
"""
ABORTS = "os.abort()"

pytestmark = pytest.mark.processes


def run(folder, body):
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    command = [sys.executable, "-c", HEAD + body, str(folder)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)


def test_a_process_that_it_forks_ends_as_ever_and_leaves_nothing(tmp_path):
    assert run(tmp_path, FORKED).stdout.split() == [str(-signal.SIGTERM), "True"]


def test_the_programs_own_handler_is_called_and_where_it_was_is_left(tmp_path):
    found = run(tmp_path, ANSWERS)
    assert (found.returncode, sorted(found.stdout.splitlines())) == (0, ["goes on", "noted"])
    assert "<module>" in (tmp_path / "stack").read_text()


def test_without_one_it_ends_by_the_signal_and_leaves_the_error_that_it_handled(tmp_path):
    assert run(tmp_path, HANDLES).returncode == -signal.SIGTERM
    told = json.loads((tmp_path / "handled/error-0.json").read_text())["traceback"]
    assert re.findall(r"in (.*)", told) == ["<module>", "main", "look_up"]  # from the first line to where it arose
    assert told.endswith("KeyError: 'label'\n")
    assert "<module>" in (tmp_path / "stack").read_text()


def test_a_program_whose_event_loop_handles_it_is_told_and_where_it_was_is_left(tmp_path):
    assert run(tmp_path, ASYNCHRONOUS).stdout.split() == ["goes", "on"]
    assert "<module>" in (tmp_path / "stack").read_text()


def test_an_abort_stays_one(tmp_path):
    assert run(tmp_path, ABORTS).returncode == -signal.SIGABRT
    assert "<module>" in (tmp_path / "stack").read_text()
