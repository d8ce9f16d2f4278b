"""Exercise 07: exposed time, the tokens that hide a sync, and what is wrong with a step."""
