"""Pictures of a schedule: step by step, at a glance, moving."""
