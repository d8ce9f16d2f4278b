"""Begin to take the time of a rank: what the guard of a launch calls before the script begins."""

import atexit
import json
import os
from pathlib import Path

from dpbook.collectives import Link
from dpbook.runs.watching import Recorder, Wanted
from dpbook.runs.watching.journal import FORECAST_VARIABLE
from dpbook.runs.watching.update_marks import Marks, Wire


def install() -> None:
    """Watch this process until it ends, as the variable asks."""
    asked = json.loads(os.environ[FORECAST_VARIABLE])
    link = Link(*asked["link"]) if asked["link"] else None
    recorder = Recorder(Path(asked["folder"]), int(os.environ["RANK"]), Wanted(asked["updates"]))
    Marks(recorder, Wire(recorder, link), int(os.environ["WORLD_SIZE"]), check=asked["check"])
    atexit.register(recorder.close, "ended")
