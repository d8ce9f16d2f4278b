"""Verdicts on somebody's own training run: is it the big batch's? The script is watched, and not changed.

`recording` runs in the ranks, with torch; everything else reads what the ranks have written, with NumPy alone.
"""

from dpbook.audit.journal import read as read_journal
from dpbook.audit.lines import Found, Line, passed
from dpbook.audit.resume import resume_lines
from dpbook.audit.running import Audit, Verdict, audit, judged
from dpbook.audit.side_by_side import Seen, seen
