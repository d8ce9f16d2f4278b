"""Ranks started from a notebook or a test: who starts them, and what each does first."""
