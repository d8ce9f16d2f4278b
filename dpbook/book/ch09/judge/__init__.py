"""Exercise 09: a mean made of messages, the groups of a grid, and the rank at fault."""
