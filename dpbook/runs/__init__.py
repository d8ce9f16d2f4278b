"""Your own training run: started and diagnosed, audited, forecast and reported. Each folder has a door of its own."""
