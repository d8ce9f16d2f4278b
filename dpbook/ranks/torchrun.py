"""torchrun, ending with the process that started it, and leaving its report of a failure in a file if it is given one.

This holds on Linux. Elsewhere torchrun outlives a caller that is killed, until its ranks' time is up.
"""

import os
import sys
from pathlib import Path

from dpbook.ranks.launching import REPORT
from dpbook.ranks.lifetime import end_with_parent
from dpbook.ranks.processes import MEMORY

LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
"""When one of several nodes ends, torchrun on the others warns of the connection, at length, although all is well."""

if __name__ == "__main__":
    end_with_parent()
    os.environ.update(MEMORY | os.environ)
    level = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "ERROR")
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    if level is None:
        del os.environ[LOG_LEVEL]  # torch has read it; the ranks keep their warnings
    try:
        main()
    except ChildFailedError as failure:  # a rank has failed, and its own error has been printed
        if REPORT not in os.environ:
            raise
        Path(os.environ[REPORT]).write_text(str(failure))
        sys.exit(1)
