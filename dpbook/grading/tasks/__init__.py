"""One package per chapter, loaded late: ``chNN/__init__.py`` holds its ``TASKS``, ``checks.py`` how they are checked.

Chapter 00, which has a single task, is a module.
"""
