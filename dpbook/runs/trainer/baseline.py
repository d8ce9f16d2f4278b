"""The same training on one process for a few steps: what the scaling efficiency of a run is measured against."""

import shutil
from collections.abc import Callable
from dataclasses import replace

from dpbook.core import machine, temporary_folder
from dpbook.runs.launch import Launch, launch
from dpbook.runs.trainer import metrics
from dpbook.runs.trainer.options import Options

ALONE = "alone"
"""In the folder of the run."""
STEPS_ALONE = 30


def train_alone(options: Options, nproc: int, say: Callable[[str], None]) -> bool:
    """Train as ``options`` say on one process, and keep what it measured in the run's folder; False if it failed.

    It gets as many cores as each of the ``nproc`` ranks of a machine had, and the same batch as each of them.
    """
    with temporary_folder("alone") as folder:
        alone = replace(
            options,
            out=str(folder),
            name=ALONE,
            all_reduce="torch",
            steps=STEPS_ALONE,
            save_every=0,
            predict=False,
            profile=0,
        )
        program = ("-m", "dpbook.runs.trainer", *alone.to_arguments())
        ended = launch(Launch(program, 1, threads=max(1, machine.cores() // nproc)), say)
        if ended.status == 0:
            kept = options.folder / ALONE
            kept.mkdir(exist_ok=True)
            for file in (metrics.DESCRIPTION, metrics.FILE):
                shutil.copyfile(alone.folder / file, kept / file)
        return ended.status == 0
