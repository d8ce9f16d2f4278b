"""Exercise 08: the rule of the buckets, a slider that does nothing, and buckets that beat every cap."""
