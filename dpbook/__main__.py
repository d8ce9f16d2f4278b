"""``python -m dpbook``: the same as the command ``dpbook``, without installation."""

import sys

from dpbook.app import main

sys.exit(main())
