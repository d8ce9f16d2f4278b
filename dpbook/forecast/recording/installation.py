"""Begin to take the time of a rank: what the guard of a launch calls before the script begins."""

import atexit
import json
import os
from pathlib import Path

from dpbook.audit.recording import Recorder, Wanted
from dpbook.collectives import Link
from dpbook.forecast.recording.marks import Marks
from dpbook.forecast.recording.wire import Wire
from dpbook.forecast.running import ASKED


def install() -> None:
    """Watch this process until it ends, as the variable asks."""
    asked = json.loads(os.environ[ASKED])
    link = Link(*asked["link"]) if asked["link"] else None
    recorder = Recorder(Path(asked["folder"]), int(os.environ["RANK"]), Wanted(asked["updates"]))
    Marks(recorder, Wire(recorder, link), int(os.environ["WORLD_SIZE"]), check=asked["check"])
    atexit.register(recorder.close, "ended")
