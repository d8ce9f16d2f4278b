"""The command line JupyterLab with the book, and the validation of its notebooks."""

from dpbook.app.command_line import main
