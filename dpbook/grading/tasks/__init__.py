"""One module per chapter, ``chNN.py``, each with its ``TASKS``; loaded when a task is first asked for."""
