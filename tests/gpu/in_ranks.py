"""One rank of the proof: it calls each check, and rank 0 writes down, and prints, what came of it.

What a check raises ends the rank, and so the launch, which names it: the other ranks might wait for this one for ever.
"""

import importlib
import json
import os
import time

import torch


def note(path, key, value):
    """Append a line to the file of outcomes."""
    with open(path, "a") as file:
        file.write(json.dumps([key, value]) + "\n")


if __name__ == "__main__":
    from tests.gpu.accelerator import join
    from tests.gpu.checks import BEGUN, CHECKS, CHOICES, all_of, call, line

    kind, outcomes, modules, names = json.loads(os.environ[CHOICES])
    for module in modules:
        importlib.import_module(module)
    torch.set_num_threads(1)
    accelerator = join(kind)
    for name in names:
        begun = time.monotonic()
        if accelerator.rank == 0:
            note(outcomes, BEGUN, name)
        result, why, figures = all_of(accelerator.agree(call(CHECKS[name], accelerator)))
        seconds = round(time.monotonic() - begun, 2)
        if accelerator.rank == 0:
            outcome = {"result": result, "why": why, "figures": figures, "seconds": seconds}
            note(outcomes, name, outcome)
            print(line(name, outcome), flush=True)
    torch.distributed.destroy_process_group()
