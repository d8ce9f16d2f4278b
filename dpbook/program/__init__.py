"""The training program that torchrun starts: `python -m dpbook.program`.

Importing this loads no torch: `options` serves the launcher's help too.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazily
from dpbook.program import metrics
from dpbook.program.baseline import ALONE, STEPS_ALONE, train_alone
from dpbook.program.continuing import is_finished, refuse_to_mix
from dpbook.program.needs import requirements
from dpbook.program.options import Options, add_options, from_namespace
from dpbook.program.run_folder import steps as saved_steps
from dpbook.program.run_lock import locked

if TYPE_CHECKING:
    from dpbook.program.__main__ import main
    from dpbook.program.models import Adapted, build
    from dpbook.program.trainer import Trainer

__getattr__ = lazily(__name__, Adapted="models", Trainer="trainer", build="models", main="__main__")
