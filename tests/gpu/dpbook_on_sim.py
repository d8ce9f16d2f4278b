"""`dpbook`, where whatever is launched finds a stand-in accelerator for each of its ranks."""

import sys
from dataclasses import replace

from dpbook.app import main
from dpbook.runs.launch import Launch
from tests.gpu.launches import IN_RANK


def launch_on_sim():
    """Let every later launch of this process run its program on the stand-in."""
    command = Launch.command

    def on_sim(self, *folders):
        return command(replace(self, program=(IN_RANK, "--sim", *self.program)), *folders)

    Launch.command = on_sim


if __name__ == "__main__":
    launch_on_sim()
    sys.exit(main(sys.argv[1:]))
