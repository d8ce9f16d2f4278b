"""Validation of notebooks: which of them a change touches, and the comparison of outputs."""
