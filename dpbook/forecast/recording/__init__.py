"""In a rank: the moments of a training script's updates, through hooks. The script itself is not changed.

What is written goes into a journal of `dpbook.audit`, and `dpbook.forecast.medians` reads it.

kind     written when             fields
update   the one after it ends    marks: its moments, [kind, seconds since the update before it]; synced: of each
                                  backward, whether it was averaged; held: whether it is one to compare with
model    the rank ends            device, world, tensors, units, frozen, compiled, sharded, wrapped, own_hook, buffers,
                                  cap

The kinds of marks: "begun" (the optimizer is made), "forward", "backward", a number (the gradient of that tensor is
ready), "arrived" (the sum of a bucket has), "returned" (from backward), "stepped".
"""
