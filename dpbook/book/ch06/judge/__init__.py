"""Exercise 06: the price of a schedule, the size at which one overtakes another, a plan with mistaken units."""
