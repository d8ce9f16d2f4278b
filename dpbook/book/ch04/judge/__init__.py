"""Exercise 04: four factors, the leftover, the noise scale, a warm-up."""
