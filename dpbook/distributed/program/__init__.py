"""The training program that torchrun starts: `python -m dpbook.distributed.program`.

Importing this loads no torch: `options` serves the launcher's help too.
"""

from dpbook.distributed.program.options import Options, add_options

__all__ = ["Options", "add_options"]
