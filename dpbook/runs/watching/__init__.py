"""Hooks that record in a journal what a training script does in a rank. The script itself is not changed.

`dpbook launch`, `audit` and `forecast` start it in each rank. Where another launcher starts the ranks, `recording` and
``python -m dpbook.runs.watching`` do. `hooks` calls the recorders at each event; each recorder has one subject: passes,
updates, calls, moments.
`journal` lists what they write.

A forecast and a report have another journal, which `update_parts` reads:

kind     written when               fields
update   a device has finished it   number; marks: its moments, [kind, seconds since the previous update]; spans: kind,
                                    begin, end, name, bytes and line of each (`step_spans.OpenSpan`); synced: for each
                                    backward, whether it was averaged; emulated: whether a link was emulated; own_hook:
                                    whether a hook of the script summed gradients; stepped:
                                    numbers of the optimizers; models: how many were called; examples, tokens: of its
                                    inputs; loaded: examples from loaders; workers: of the loader; detailed: whether
                                    each gradient has a mark; memory: peak so far, in bytes
model    there are more tensors     format, device, name, world, tensors, units, frozen, sharded, wrapper: its class;
                                    wrapped: by torch's DDP; bucketed: gradients travel in buckets; own_hook; buffers;
                                    cap, first: of the buckets; bucket_view; optimizers: their classes

The kinds of marks: "begun" (the previous update has ended), "forward", "backward", a number (the gradient of that
tensor is ready), "returned" (backward has returned), "stepped".
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.runs.watching.journal import (
    BUFFERS,
    JOURNAL,
    MOMENTS_FORMAT,
    number_of_journals,
    read_journal,
    read_lines,
)
from dpbook.runs.watching.update_parts import (
    PARTS,
    Call,
    UpdateOnRank,
    in_rounds,
    micro_batches,
    read_update,
    rounds,
    split,
)
from dpbook.runs.watching.watched_launch import with_hooks

if TYPE_CHECKING:
    from dpbook.runs.watching.installation import recording, stop_watching

__getattr__ = lazy_exports(__name__, recording="installation", stop_watching="installation")
