"""Costs of schedules: links and topologies, α–β prices, closed forms, bounds, fits."""
