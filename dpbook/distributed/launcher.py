"""torchrun, ending with the process that started it: a notebook kernel that is killed leaves no ranks behind.

This holds on Linux. Elsewhere torchrun outlives a caller that is killed, until its ranks' time is up.
"""

from __future__ import annotations

import os

from dpbook.distributed.lifetime import end_with_parent

MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20)}
"""Keep what glibc frees: it would hand gradients back to the system in every step, and take them again page by page.
With 40 gradients of 1 MiB that is a sixth of a step of two ranks on the CPU, in torch's DDP as in ours."""

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""When one of several nodes ends, torchrun on the others warns of the connection, at length, although all is well."""

if __name__ == "__main__":
    end_with_parent()
    os.environ.update(MEMORY | os.environ)
    level = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    from torch.distributed.run import main

    if level is None:
        del os.environ[LOG_LEVEL]  # torch has read it; the ranks keep their warnings
    main()
