"""Exercise 11: from a script to ranks, bytes on the wire, and who sits where."""
