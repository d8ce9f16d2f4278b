"""Exercise 03: a rank's part, an epoch's order, two wrong seeds in numbers, and who waits for whom."""
