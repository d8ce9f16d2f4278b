"""Which gradients travel together."""

from dpbook.overlap.buckets.plans import first_step_plan, flat_plan, per_tensor_plan, plan
