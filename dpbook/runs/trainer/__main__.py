"""One rank of a training run: `torchrun -m dpbook.runs.trainer`, or `main` in a rank of `dpbook.ranks.start`."""

import gc

if __name__ == "__main__":
    gc.disable()  # loading creates no garbage; collection resumes once the trainer exists

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import DpbookError, exit_without_teardown, print_error_and_exit, write_atomically
from dpbook.ranks import device_name, join_group, own_device, regroup
from dpbook.runs.trainer.metrics import DESCRIPTION, PREDICTION, Metrics
from dpbook.runs.trainer.options import Options, add_options, from_namespace
from dpbook.runs.trainer.prediction import predict
from dpbook.runs.trainer.run_folder import changes, consequences, table
from dpbook.runs.trainer.trainer import TIMEOUT, Trainer, train
from dpbook.runs.trainer.workloads import flops_per_token
from dpbook.runs.watching import stop_watching

SINGLE_PROCESS = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
}  # fmt: skip
"""Environment variables that torchrun would set for a single process."""


def main(arguments: list[str] | None = None) -> int:
    """Train, and return the exit status."""
    parser = argparse.ArgumentParser(prog="torchrun -m dpbook.runs.trainer", description=__doc__)
    add_options(parser)
    try:
        options = from_namespace(parser.parse_args(arguments))
    except DpbookError as error:
        parser.error(str(error))
    device = bind()
    _run(options, device)
    dist.destroy_process_group()  # not after an error: NCCL would wait for other ranks before it is shown
    return 0


def bind() -> torch.device:
    """Join the process group that torchrun describes, or without torchrun a group of this process alone.

    Every rank selects its accelerator before anything else uses one; otherwise all would be on the first. A rank of
    `dpbook.ranks.start` already has a gloo group. Raises `DpbookError` if there is no accelerator for this rank alone.
    """
    os.environ.update(SINGLE_PROCESS | os.environ)
    device, backends = own_device()
    if dist.is_initialized():
        if device.type != "cpu":
            regroup(device, backends)
    elif device.type == "cpu":
        dist.init_process_group(backends, timeout=TIMEOUT)
    else:
        join_group(device, backends, TIMEOUT)
    return device


def _run(options: Options, device: torch.device) -> None:
    trainer = Trainer(options, device)
    gc.freeze()  # all of this stays, so later collections need not scan it
    gc.enable()
    trainer.preemption.listen()
    before = trainer.resume()
    first = trainer.rank == 0
    if first and before is not None:
        print(_resumed(before, trainer), file=sys.stderr, flush=True)
    metrics = Metrics(options.folder, trainer.step) if first else None
    if first and trainer.step < options.steps:  # otherwise the files describe the run that made the steps
        (options.folder / PREDICTION).unlink(missing_ok=True)
        write_atomically(options.folder / DESCRIPTION, (json.dumps(describe(trainer), indent=1) + "\n").encode())
    with _progress(options.steps, trainer.step) if first else contextlib.nullcontext() as progress:
        train(trainer, metrics, progress)
    if trainer.step < options.steps:
        if first:
            text = f"stopped: checkpoint saved after step {trainer.step:,} of {options.steps:,}"
            print(text, file=sys.stderr, flush=True)
    elif options.predict:
        stop_watching()  # the passes that a prediction measures are no updates
        predicted = predict(trainer)
        if first:
            (options.folder / PREDICTION).write_text(json.dumps(predicted, indent=1) + "\n", encoding="utf-8")


def _progress(steps: int, begun: int) -> contextlib.AbstractContextManager[Any]:
    """Return a progress bar for a terminal; None where tqdm, of the extra `book`, is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return contextlib.nullcontext()
    bar: contextlib.AbstractContextManager[Any] = tqdm(total=steps, initial=begun, unit="step", disable=None)
    return bar


def describe(trainer: Trainer) -> dict[str, Any]:
    """Return the description of a run that the report needs beside the metrics."""
    device = trainer.device
    return {
        "options": asdict(trainer.options),
        "world": trainer.world,
        "resumed_at": trainer.step,
        "backend": dist.get_default_backend_for_device(device),
        "device": device_name(device),
        "parameters": sum(p.numel() for p in trainer.module.parameters()),
        "trained": sum(p.numel() for p in trainer.trained),
        "payload_bytes": trainer.payload,
        "tokens_per_step": trainer.tokens_per_step,
        "flops_per_token": flops_per_token(trainer.module) if trainer.options.model == "gpt" else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _resumed(before: dict[str, Any], trainer: Trainer) -> str:
    head = f"resumed after step {before['step']} of {trainer.options.steps}"
    differences = changes(before["options"], before["world"], trainer.options, trainer.world)
    if not differences:
        return head
    notes = consequences(differences, before["options"], trainer.options)
    return f"{head}: its options have changed\n{table(differences, notes)}"


if __name__ == "__main__":
    sys.excepthook = print_error_and_exit
    exit_without_teardown(main())
