"""Verdicts on somebody's own training run: is it the big batch's? The script is watched, and not changed.

`recording` runs in the ranks, with torch; everything else reads what the ranks have written, with NumPy alone.
"""

from dpbook.audit.journal import read as read_journal
from dpbook.audit.lines import Found, Line
from dpbook.audit.running import Audit, Verdict, audit
