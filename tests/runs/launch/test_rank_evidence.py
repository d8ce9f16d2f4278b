"""Does a rank that receives SIGTERM write its stack, and otherwise behave as if it were not watched?"""

import json
import re
import signal
import subprocess
import sys

import pytest

HEAD = """
import os, signal, sys, time
from pathlib import Path
from dpbook.runs.launch.rank_evidence import RankEvidence
folder = Path(sys.argv[1])
stack = open(folder / "stack-0.txt", "w")
evidence = RankEvidence(folder, stack)
evidence.watch()
evidence.begin_rank(0)
def terminate(process):
    os.kill(process, signal.SIGTERM)
"""
FORKED = """
begun, begins = os.pipe()
child = os.fork()
if not child:
    os.write(begins, b"+")
    time.sleep(60)
os.read(begun, 1)
terminate(child)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
time.sleep(0.2)
print(status, (folder / "stack-0.txt").read_text() == "")
"""
ANSWERS = """
signal.signal(signal.SIGTERM, lambda number, frame: print("noted"))
terminate(os.getpid())
until = time.time() + 60
while not (folder / "stack-0.txt").read_text() and time.time() < until:
    time.sleep(0.05)
print("goes on")
"""
HANDLES = """
def look_up():
    try:
        {}["label"]
    except KeyError:
        terminate(os.getpid())
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
    terminate(os.getpid())
    await asyncio.wait_for(stop.wait(), 60)
    while not (folder / "stack-0.txt").read_text():
        await asyncio.sleep(0.05)
    print("goes on")
asyncio.run(main())
"""
ABORTS = "os.abort()"

pytestmark = pytest.mark.processes


def run(folder, body):
    command = [sys.executable, "-c", HEAD + body, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_a_forked_process_ends_by_the_signal_and_writes_nothing(tmp_path):
    assert run(tmp_path, FORKED).stdout.split() == [str(-signal.SIGTERM), "True"]


def test_the_programs_handler_is_called_and_the_stack_is_written(tmp_path):
    ended = run(tmp_path, ANSWERS)
    assert (ended.returncode, sorted(ended.stdout.splitlines())) == (0, ["goes on", "noted"])
    assert "<module>" in (tmp_path / "stack-0.txt").read_text()


def test_without_a_handler_the_rank_ends_by_the_signal_and_writes_the_error_that_it_handled(tmp_path):
    assert run(tmp_path, HANDLES).returncode == -signal.SIGTERM
    trace = json.loads((tmp_path / "handled/error-0.json").read_text())["traceback"]
    assert re.findall(r"in (.*)", trace) == ["<module>", "main", "look_up"]  # from the script's first line on
    assert trace.endswith("KeyError: 'label'\n")
    assert "<module>" in (tmp_path / "stack-0.txt").read_text()


def test_an_event_loop_receives_the_signal_and_the_stack_is_written(tmp_path):
    assert run(tmp_path, ASYNCHRONOUS).stdout.split() == ["goes", "on"]
    assert "<module>" in (tmp_path / "stack-0.txt").read_text()


def test_an_abort_stays_an_abort_and_the_stack_is_written(tmp_path):
    assert run(tmp_path, ABORTS).returncode == -signal.SIGABRT
    assert "<module>" in (tmp_path / "stack-0.txt").read_text()
