"""Launching a training script with torchrun: checks before it starts, a guard in each rank, watches from outside.

Importing this loads no torch.
"""

from dpbook.runs.launch.command import RECORDED_VARIABLE, WATCHER_VARIABLE, Launch, default_processes
from dpbook.runs.launch.launcher import LaunchResult, launch, new_folder
from dpbook.runs.launch.preflight_checks import PreflightFinding, check_peers, gpus_without_torch_build, preflight
from dpbook.runs.launch.watches import MEMORY_PREFIX
