"""Exercise 05: a wrong ring, a price, a schedule, a rank program."""
