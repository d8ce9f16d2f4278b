"""Run the function of `torch.multiprocessing.spawn` in the ranks of a launch, for a script that starts its own ranks.

Under torchrun each rank would start all of them. Here each rank calls the function once, with its own local rank, so
that such a script is launched, audited and measured like one that a launcher starts.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable: its own process serves the store at ``MASTER_PORT``, and no rank has to."""


class FinishedRanks:
    """Context that ``spawn(join=False)`` returns: the function has run, and there is no process to wait for."""

    processes: tuple[()] = ()

    def join(self, timeout: float | None = None) -> bool:
        """Return True: all are done."""
        return True


def call_spawned_functions() -> None:
    """Replace `torch.multiprocessing.spawn` for calls that start as many processes as this node has ranks.

    Other calls, and those of a rank that has joined a process group, start processes as before.
    """
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing

    start = multiprocessing.spawn
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

    def spawn(
        fn: Callable[..., object],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        *others: Any,
        **options: Any,
    ) -> Any:
        if nprocs != ranks or dist.is_initialized():
            return start(fn, args, nprocs, join, *others, **options)
        with _stores_of_the_script():
            fn(rank, *args)
        return None if join else FinishedRanks()

    multiprocessing.spawn = spawn


@contextmanager
def _stores_of_the_script() -> Iterator[None]:
    """Have rank 0 serve a store at a port that the script chooses, as it does where nothing has launched it.

    Changes of the environment end with the block, as they would end with the process.
    """
    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name
    environment, create = dict(os.environ), rendezvous._create_c10d_store

    def create_store(hostname: str, port: int, *others: Any, **options: Any) -> Any:
        is_launchs = str(port) == environment.get("MASTER_PORT")
        os.environ[AGENT_STORE] = environment.get(AGENT_STORE, str(False)) if is_launchs else str(False)
        return create(hostname, port, *others, **options)

    rendezvous._create_c10d_store = create_store  # type: ignore[attr-defined]
    try:
        yield
    finally:
        rendezvous._create_c10d_store = create  # type: ignore[attr-defined]
        os.environ.clear()
        os.environ.update(environment)
