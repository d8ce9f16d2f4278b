"""What this process has done for an answer that waits for it."""

import os
import threading
import time
from typing import NamedTuple

from dpbook.classroom.tasks.cpu_wait import delay_of_thread, delays_of


class _Used(NamedTuple):
    """Seconds in which a thread computed, and in which it was ready to while others did."""

    computed: float = 0.0
    delayed: float = 0.0


class Served:
    """Seconds in which this process computed, or was ready to, from when this was made.

    But for what its threads use while they wait and look at the time: nobody waits for that, and on a busy machine
    each look may take longer than the waiting.
    """

    def __init__(self) -> None:
        self._at_last_look: dict[int, _Used] = {}
        self._looking: dict[int, _Used] = {}  # each thread writes what is its own
        self._before = _Used()
        self._before = _Used(self.computed(), self.delayed())

    def look(self, again: bool) -> None:
        """This thread looks; ``again`` where it has only waited since it last did."""
        thread = threading.get_native_id()
        used = _Used(time.thread_time(), delay_of_thread(os.getpid(), thread))
        if again and thread in self._at_last_look:
            last, looking = self._at_last_look[thread], self._looking.get(thread, _Used())
            computed, delayed = used.computed - last.computed, used.delayed - last.delayed
            self._looking[thread] = _Used(looking.computed + computed, looking.delayed + delayed)
        self._at_last_look[thread] = used

    def computed(self) -> float:
        looking = sum(each.computed for each in list(self._looking.values()))
        return time.process_time() - looking - self._before.computed

    def delayed(self) -> float:
        """Without those of a thread that has ended."""
        delays = delays_of(os.getpid()).items()
        return sum(each - self._looking.get(thread, _Used()).delayed for thread, each in delays) - self._before.delayed
