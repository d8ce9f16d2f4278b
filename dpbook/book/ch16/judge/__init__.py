"""Exercise 16: error feedback, a period for a link, a repair, and the method that wins."""
