"""Collective algorithms, each a function from the number of ranks to a `Schedule`."""
