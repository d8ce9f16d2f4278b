"""Validation of notebooks: which of them a change touches, the kernels that run them, the comparison of outputs."""
