"""Start to time a rank; the guard of a launch calls this before the script begins."""

import atexit
import json
import os
from pathlib import Path

from dpbook.collectives import Link
from dpbook.runs.watching import Recorder, RecordingOptions
from dpbook.runs.watching.journal import FORECAST_VARIABLE
from dpbook.runs.watching.update_marks import BucketHooks, UpdateMarks


def install() -> None:
    """Record this process until it ends, with the options in the environment variable."""
    request = json.loads(os.environ[FORECAST_VARIABLE])
    link = Link(*request["link"]) if request["link"] else None
    recorder = Recorder(Path(request["folder"]), int(os.environ["RANK"]), RecordingOptions(request["updates"]))
    UpdateMarks(recorder, BucketHooks(recorder, link), int(os.environ["WORLD_SIZE"]), check=request["check"])
    atexit.register(recorder.close, "ended")
