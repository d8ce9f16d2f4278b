"""Launching a training script with torchrun: checks before it starts, a guard in each rank, watches from outside.

Importing this loads no torch.
"""

from dpbook.runs.launch.command import Launch, default_processes
from dpbook.runs.launch.launcher import Ended, launch
from dpbook.runs.launch.memory_watch import HELD
from dpbook.runs.launch.peers import check_peers
from dpbook.runs.launch.preflight_checks import Finding, blind, preflight
