"""Chapter 06: The cost of a collective."""
