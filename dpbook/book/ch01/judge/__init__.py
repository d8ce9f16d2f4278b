"""Exercise 01: the average, the step, the two meters, the arithmetic."""
