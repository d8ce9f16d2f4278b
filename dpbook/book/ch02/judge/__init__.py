"""Exercise 02: drift without a bug, orders of addition, tokens, batch normalisation over all ranks."""
