"""One rank of the proof: it calls each check, and rank 0 writes down what came of it on all ranks."""

import json
import os
import time

import torch

if __name__ == "__main__":
    from tests.gpu.accelerator import join
    from tests.gpu.checks import CHECKS, all_of, attempt
    from tests.gpu.proof import CHOICES

    kind, outcomes, names = json.loads(os.environ[CHOICES])
    torch.set_num_threads(1)
    accelerator = join(kind)
    for name in names:
        begun = time.monotonic()
        result, why, figures = all_of(accelerator.agree(attempt(CHECKS[name], accelerator)))
        seconds = round(time.monotonic() - begun, 2)
        if accelerator.rank == 0:
            outcome = {"result": result, "why": why, "figures": figures, "seconds": seconds}
            with open(outcomes, "a") as file:
                file.write(json.dumps([name, outcome]) + "\n")
    torch.distributed.destroy_process_group()
