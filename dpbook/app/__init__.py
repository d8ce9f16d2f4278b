"""The command line, JupyterLab with the book, the validation of its notebooks, and the book as web pages."""

from dpbook.app.command_line import main
