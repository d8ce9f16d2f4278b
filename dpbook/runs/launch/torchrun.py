"""torchrun, ending with the process that started it, and leaving its report of a failure in a file if it is given one.

This holds on Linux. Elsewhere torchrun outlives a caller that is killed, until its ranks' time is up.
"""

import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

from dpbook.core import end_with_parent, leave, machine, tell_and_leave
from dpbook.ranks import held_port
from dpbook.runs.launch.command import REPORT, WATCH_START

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""When one of several nodes ends, torchrun on the others warns of the connection, at length, although all is well."""

ENDPOINT = "--rdzv-endpoint="
MARGIN = 3.0
"""Seconds that torch has to tell by itself that nobody answers."""


def watch_meeting(endpoint: str, patience: float) -> None:
    """End this process where something at ``endpoint`` takes connections and says nothing: torch waits for ever then.

    All else torch tells by itself, in time.
    """
    from torch.distributed import TCPStore

    met = threading.Event()
    host, _, port = endpoint.rpartition(":")

    def meet() -> None:
        with suppress(Exception):
            TCPStore(host, int(port), None, False, timedelta(seconds=patience), False)
        met.set()

    threading.Thread(target=meet, daemon=True).start()
    if not met.wait(patience + MARGIN):
        print("RendezvousConnectionError: no answer", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for ranks, which inherit this and may take it
    os.environ.update(machine.MALLOC_SETTINGS | os.environ)
    level = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    gc.disable()  # modules are no garbage: without looking for it torch is loaded in three quarters of the time
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api
    from torch.distributed.run import main

    gc.enable()
    if level is None:
        del os.environ[LOG_LEVEL]  # torch has read it; the ranks keep their warnings
    own = sys.argv[: sys.argv.index("-m")]
    if endpoint := next((word.removeprefix(ENDPOINT) for word in own if word.startswith(ENDPOINT)), ""):
        patience = float(os.environ.get(WATCH_START, 300))
        threading.Thread(target=watch_meeting, args=(endpoint, patience), daemon=True).start()
        sys.excepthook = tell_and_leave  # the thread may be inside torch: Python's own end would abort then
    held = ExitStack()
    # torch chooses a port for rank 0 and lets go of it, seconds before rank 0 has loaded torch and listens there.
    api.get_free_port = lambda: held.enter_context(held_port())
    try:
        main()
    except SignalException as failure:  # its ranks have been ended
        leave(128 + failure.sigval)
    except ChildFailedError as failure:  # a rank has failed, and its own error has been printed
        if REPORT not in os.environ:
            raise
        Path(os.environ[REPORT]).write_text(str(failure))
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        leave(1)  # the thread that watches the meeting may still be inside torch, which aborts when Python goes
