"""Hooks that record in a journal what a training script does in a rank. The script itself is not changed.

`hooks` calls the recorders at each event; each recorder has one subject: passes, updates, calls, moments.
`journal` lists what they write.

A forecast has another journal, which `dpbook.runs.forecast.measured_step` reads:

kind     written when             fields
update   the next update ends     marks: its moments, [kind, seconds since the previous update]; synced: for each
                                  backward, whether it was averaged; emulated: whether a link was emulated
model    the rank ends            device, world, tensors, units, frozen, sharded, wrapped, own_hook, buffers,
                                  cap

The kinds of marks: "begun" (the optimizer was created), "forward", "backward", a number (the gradient of that tensor is
ready), "arrived" (the sum of a bucket has arrived), "returned" (backward has returned), "stepped".
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.runs.watching.journal import Recorder, RecordingOptions, read_journal

if TYPE_CHECKING:
    from dpbook.runs.watching.hooks import averages, owners, syncs
    from dpbook.runs.watching.installation import watched

__getattr__ = lazy_exports(__name__, averages="hooks", owners="hooks", syncs="hooks", watched="installation")
