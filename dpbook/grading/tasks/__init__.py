"""One module per chapter, ``chNN.py``, or a package where that grew long, each with its ``TASKS``; loaded when needed."""
