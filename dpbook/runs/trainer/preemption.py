"""Preemption: a run that receives SIGTERM or SIGUSR1 on any rank saves after the same update on all ranks, and ends."""

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from dpbook.ranks import PREEMPTION_VARIABLE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that a scheduler sends before it reclaims a node."""
TRAINING_GRACE_SECONDS = 20.0
"""Seconds from SIGTERM until a training process exits without a checkpoint. torchrun also sends SIGTERM if another rank
has failed; then no update follows, and torchrun kills the process after 30 seconds."""
IDLE_GRACE_SECONDS = 2.0
"""The same while the program does not train: time for the guard to record where this rank was."""


@dataclass
class PreemptionListener:
    """Listens for signals that ask this rank to end.

    ``requested`` is set when this rank has received such a signal. The program sets ``acknowledged`` when all ranks
    know of it, and ``training`` while it trains: only then is it worth waiting for the next update.
    """

    requested: threading.Event = field(default_factory=threading.Event)
    acknowledged: threading.Event = field(default_factory=threading.Event)
    training: bool = False

    def listen(self) -> None:
        """Handle the signals from now on; only the main thread can call it.

        A thread reads them, because the main thread may wait in a collective for a rank that has died.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # The file descriptor comes first, so that no signal is lost. The guard shares it, to record where this rank is.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: None)  # the thread has received the signal already
        if (path := os.environ.get(PREEMPTION_VARIABLE)) and Path(path).exists():
            self.requested.set()
        threading.Thread(target=self._read, args=(reading,), daemon=True).start()

    def _read(self, reading: int) -> None:
        while number := os.read(reading, 1)[0]:
            if number in SIGNALS:
                self.requested.set()
            if number == signal.SIGTERM:
                threading.Thread(target=self._give_up, daemon=True).start()

    def _give_up(self) -> None:
        """End this process if the ranks do not finish an update in time."""
        if not self.acknowledged.wait(TRAINING_GRACE_SECONDS if self.training else IDLE_GRACE_SECONDS):
            os._exit(128 + signal.SIGTERM)
