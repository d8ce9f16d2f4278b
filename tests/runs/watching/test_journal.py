"""Does a script end that has been stopped because its recording is complete?"""

import subprocess
import sys

import pytest

WAITS = """
import multiprocessing, threading, time
from dpbook.runs.watching import journal
journal.END_SECONDS = 0.5
recorder = journal.Recorder(__import__("pathlib").Path({folder!r}), 0, journal.RecordingOptions())
writer = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
writer.start()
{thread}
try:
    recorder.finish(1)
finally:
    print("saved", flush=True)
    {wait}
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("thread", "wait"),
    [
        ("", ""),  # Python waits for the process when the script ends
        ("threading.Thread(target=time.sleep, args=(600,)).start()", ""),
        ("", "writer.join()"),
    ],
)
def test_a_stopped_script_ends_even_if_its_helpers_wait_for_more(tmp_path, thread, wait):
    script = WAITS.format(folder=str(tmp_path), thread=thread, wait=wait)
    # It returns when all have ended that could still print, the helper too.
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "saved\n", "")
