"""What runs in each rank of a launch beside its script, and leaves word of what became of it."""
