"""Pictures of a schedule: step by step, at a glance, moving."""

from dpbook.figures.schedules.words import kind_name, schedule_name
