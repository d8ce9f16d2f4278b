"""Exercise 14: bytes of the stages, the hooks of a unit, units under a memory limit, and the norm of shards."""
