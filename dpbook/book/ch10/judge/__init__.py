"""Exercise 10: broadcast and average, hooks, a wrapper with two mistakes, and the reader's own."""
