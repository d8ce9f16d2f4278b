"""Hooks that write into a journal what a training script does in a rank. The script itself is not changed.

Each module watches one thing: modules, loaders, backward, updates, calls. `journal` lists what they write.

A forecast has a journal of its own, which `dpbook.runs.forecast.measured_step` reads:

kind     written when             fields
update   the one after it ends    marks: its moments, [kind, seconds since the update before it]; synced: of each
                                  backward, whether it was averaged; held: whether it is one to compare with
model    the rank ends            device, world, tensors, units, frozen, compiled, sharded, wrapped, own_hook, buffers,
                                  cap

The kinds of marks: "begun" (the optimizer is made), "forward", "backward", a number (the gradient of that tensor is
ready), "arrived" (the sum of a bucket has), "returned" (from backward), "stepped".
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.runs.watching.journal import Recorder, Wanted
from dpbook.runs.watching.journal import read as read_journal

if TYPE_CHECKING:
    from dpbook.runs.watching.installation import watched
    from dpbook.runs.watching.modules import averages, owners, syncs

__getattr__ = lazy_exports(__name__, averages="modules", owners="modules", syncs="modules", watched="installation")
