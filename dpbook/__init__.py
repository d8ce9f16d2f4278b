"""dpbook: a runnable book on data-parallel training.

Importing the package loads nothing else; each room is imported by its own name.
"""

__version__ = "1.0.0"
