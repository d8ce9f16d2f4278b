"""torchrun, ending with the process that started it: a notebook kernel that is killed leaves no ranks behind.

This holds on Linux. Elsewhere torchrun outlives a caller that is killed, until its ranks' time is up.
"""

from __future__ import annotations

from dpbook.distributed.lifetime import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    from torch.distributed.run import main

    main()
