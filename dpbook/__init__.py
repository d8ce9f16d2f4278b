"""dpbook: a book on data-parallel training that runs.

Importing the package loads nothing else; each room is imported by its own name.
"""

__version__ = "1.0.0"
