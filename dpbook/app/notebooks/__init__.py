"""Validation of notebooks: the kernels that run them, and the comparison of their outputs with the stored ones."""
