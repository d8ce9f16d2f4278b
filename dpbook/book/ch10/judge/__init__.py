"""Exercise 10: broadcast and average, hooks, a published wrapper with two mistakes, and the reader's own."""
