"""dpbook: a book on data-parallel training that runs.

Importing the package loads NumPy at most; each room is imported by its own name.
"""

from dpbook.core import watch_imports

__version__ = "0.1.0"

watch_imports()
