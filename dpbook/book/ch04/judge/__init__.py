"""Exercise 04: four factors, the count of all tokens, the noise scale, a warm-up."""
