"""Training program that torchrun starts: `python -m dpbook.runs.trainer`.

Importing this package loads no torch, because the launcher's help uses `options` too.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.runs.trainer import metrics
from dpbook.runs.trainer.metrics import ALONE, STEPS_ALONE, train_alone
from dpbook.runs.trainer.options import GROUP_TIMEOUT, Options, add_options, from_namespace, leaves_size_open
from dpbook.runs.trainer.resource_check import fits, requirements
from dpbook.runs.trainer.run_folder import is_finished, locked, refuse_to_mix
from dpbook.runs.trainer.run_folder import steps as saved_steps

if TYPE_CHECKING:
    from dpbook.runs.trainer.__main__ import main
    from dpbook.runs.trainer.trainer import Trainer
    from dpbook.runs.trainer.workloads import GPT, Adapted, Text, build

__getattr__ = lazy_exports(
    __name__, GPT="workloads", Adapted="workloads", Text="workloads", Trainer="trainer", build="workloads",
    main="__main__",
)  # fmt: skip
