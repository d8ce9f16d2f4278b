"""Baseline of the scaling efficiency: the same training on one process for a few steps."""

import shutil
from collections.abc import Callable
from dataclasses import replace

from dpbook.core import machine, temporary_folder
from dpbook.runs.launch import Launch, launch
from dpbook.runs.trainer import metrics
from dpbook.runs.trainer.options import Options

ALONE = "alone"
"""Folder of the baseline in the folder of the run."""
STEPS_ALONE = 30
"""Steps of the baseline."""


def train_alone(options: Options, nproc: int, report: Callable[[str], None]) -> bool:
    """Train with ``options`` on one process, and save its metrics in the run's folder; return False if it failed.

    The process has as many cores as each of the ``nproc`` ranks of a machine had, and the batch of one rank.
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
        ended = launch(Launch(program, 1, threads=max(1, machine.cores() // nproc)), report)
        if ended.status == 0:
            target = options.folder / ALONE
            target.mkdir(exist_ok=True)
            for file in (metrics.DESCRIPTION, metrics.FILE):
                shutil.copyfile(alone.folder / file, target / file)
        return ended.status == 0
