"""What a schedule costs: links and topologies, α–β prices, closed forms, bounds, fits."""
