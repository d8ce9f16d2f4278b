"""How far a run went astray."""

import numpy as np

from dpbook.core import InvalidArgument
from dpbook.replicas.array import Array
from dpbook.replicas.run import Run


def relative_distance(run: Run, exact: Run, start: Array) -> float:
    """Return the distance of a run's final parameters from the exact run's, over the way that the latter went.

    ‖w − w_exact‖ / ‖w_exact − w_start‖, where each w is the mean over the replicas. 0 is the exact run, and 1 as far
    from it as it is from the start.

    Args:
        start: the initial parameters, (size,) or one row per replica.
    """
    ends = [np.mean(np.atleast_2d(params), axis=0, dtype=np.float64) for params in (run.params, exact.params, start)]
    if len({end.shape for end in ends}) > 1:
        raise InvalidArgument("run, exact, start", [end.size for end in ends], "of one size")
    own, target, first = ends
    if not (way := np.linalg.norm(target - first)):
        raise InvalidArgument("exact", exact, "a run that moved")
    return float(np.linalg.norm(own - target) / way)
