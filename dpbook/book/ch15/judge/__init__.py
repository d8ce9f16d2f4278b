"""Exercise 15: blind cases, a script with five mistakes, and a check of one's own."""
