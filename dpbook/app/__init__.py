"""The command line and the pages that it writes."""

from dpbook.app.command_line import main
from dpbook.app.doctor import diagnose
