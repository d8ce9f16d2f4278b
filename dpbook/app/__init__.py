"""The command line and the pages that it writes."""

from typing import TYPE_CHECKING

from dpbook.app.command_line import main
from dpbook.core import lazily

if TYPE_CHECKING:
    from dpbook.app.doctor import diagnose

__getattr__ = lazily(__name__, diagnose="doctor")
