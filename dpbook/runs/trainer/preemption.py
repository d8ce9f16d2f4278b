"""A run that is asked to end saves first: after the same update on all ranks, whichever of them was asked."""

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dpbook.ranks import PREEMPTION_VARIABLE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What a scheduler sends before it takes a node away."""
PATIENCE, MOMENT = 20.0, 2.0
"""Seconds after SIGTERM while the program trains: torchrun sends it too where another rank has failed, and no update
comes then; after 30 it kills. And while it does not: for the guard to write down where this rank was."""


@dataclass
class Asked:
    """``came`` is set when this rank has been asked to end; the program sets ``heeded`` when all know of it.

    Only while the program is ``training`` an update comes for which it is worth to wait.
    """

    came: threading.Event = field(default_factory=threading.Event)
    heeded: threading.Event = field(default_factory=threading.Event)
    training: bool = False

    def listen(self) -> None:
        """Take the signals from here on; only a main thread can.

        A thread reads which came: the main thread may wait inside a collective, for a rank that is gone.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # First, so that no signal goes without an answer. The guard shares it, to write down where this rank is.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, _nothing)
        if (path := os.environ.get(PREEMPTION_VARIABLE)) and Path(path).exists():
            self.came.set()
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, reading: int) -> None:
        while number := os.read(reading, 1)[0]:
            if number in SIGNALS:
                self.came.set()
            if number == signal.SIGTERM:
                threading.Thread(target=self._give_up, daemon=True).start()

    def _give_up(self) -> None:
        """End this process where its ranks do not come to an update in time."""
        if not self.heeded.wait(PATIENCE if self.training else MOMENT):
            os._exit(128 + signal.SIGTERM)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The thread has been told already."""
