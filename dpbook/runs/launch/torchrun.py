"""torchrun that ends with the process that started it, and leaves its report of a failure in a file.

It ends with that process on Linux only. Elsewhere torchrun outlives a caller that is killed, until its ranks time out.
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
from types import FrameType
from typing import Any

from dpbook.core import end_with_parent, exit_without_teardown, machine, print_error_and_exit
from dpbook.ranks import held_port
from dpbook.runs.launch.command import REPORT_VARIABLE, START_TIMEOUT_VARIABLE

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""When one of several nodes ends, torchrun on the others warns of the connection, at length, although all is well."""
ENDPOINT_OPTION = "--rdzv-endpoint="
MARGIN_SECONDS = 3.0
"""Seconds beyond the timeout in which torch itself may report that no rendezvous answers."""


def watch_rendezvous(endpoint: str, timeout: float) -> None:
    """End this process if something at ``endpoint`` accepts connections and never answers: torch then waits for ever.

    torch reports all other failures of a rendezvous in time.
    """
    from torch.distributed import TCPStore

    met = threading.Event()
    host, _, port = endpoint.rpartition(":")

    def meet() -> None:
        with suppress(Exception):
            TCPStore(host, int(port), None, False, timedelta(seconds=timeout), False)
        met.set()

    threading.Thread(target=meet, daemon=True).start()
    if not met.wait(timeout + MARGIN_SECONDS):
        print("RendezvousConnectionError: no answer", file=sys.stderr, flush=True)
        os._exit(1)


def delay_signals_while_ranks_start() -> None:
    """Have torchrun handle a signal that arrives while it starts ranks when it has started all, so that it ends all.

    Its handler raises an exception, and it stores the processes that it ends after it has started the last one.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import api

    handle, start = api._terminate_process_handler, LocalElasticAgent._start_workers
    is_starting, numbers = False, list[int]()

    def handle_later(number: int, frame: FrameType | None) -> None:
        if is_starting:
            numbers.append(number)
        else:
            handle(number, frame)

    def start_all(agent: LocalElasticAgent, group: Any) -> dict[int, Any]:
        nonlocal is_starting
        is_starting = True
        try:
            processes: dict[int, Any] = start(agent, group)
        finally:
            is_starting = False
        for number in numbers:
            handle(number, None)
        return processes

    api._terminate_process_handler = handle_later
    LocalElasticAgent._start_workers = start_all


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for the ranks, which inherit this and may handle the signal
    os.environ.update(machine.MALLOC_SETTINGS | os.environ)
    level = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    gc.disable()  # modules are not garbage, and without a search for it torch loads in three quarters of the time
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api
    from torch.distributed.run import main

    gc.enable()
    if level is None:
        del os.environ[LOG_LEVEL]  # torch has read it; the ranks keep their warnings
    options = sys.argv[: sys.argv.index("-m")]
    endpoints = (option.removeprefix(ENDPOINT_OPTION) for option in options if option.startswith(ENDPOINT_OPTION))
    if endpoint := next(endpoints, ""):
        timeout = float(os.environ[START_TIMEOUT_VARIABLE])
        threading.Thread(target=watch_rendezvous, args=(endpoint, timeout), daemon=True).start()
        # When the main thread raises, the thread may be inside torch, and Python's normal exit would abort.
        sys.excepthook = print_error_and_exit
    delay_signals_while_ranks_start()
    reserved_ports = ExitStack()
    # torch chooses a port for rank 0 and releases it, seconds before rank 0 has loaded torch and listens there.
    api.get_free_port = lambda: reserved_ports.enter_context(held_port())
    status = 0
    try:
        main()
    except SignalException as failure:  # its ranks have been ended
        status = 128 + failure.sigval
    except ChildFailedError as failure:  # a rank has failed, and its own error has been printed
        Path(os.environ[REPORT_VARIABLE]).write_text(str(failure))
        status = 1
    except Exception:
        traceback.print_exc()
        status = 1
    # The thread that watches the rendezvous may be inside torch, which a teardown would have abort; and taking torch
    # down takes a second.
    exit_without_teardown(status)
