"""A training step whose state is sharded, simulated: stages 0 to 3, what they send, and what memory is alive when."""
