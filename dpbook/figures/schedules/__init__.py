"""Pictures of schedules and of groups of ranks."""

from dpbook.figures.schedules.states import kind_name, schedule_name
