"""Verdicts on somebody's own training run: is it the big batch's? The script is watched, and not changed.

`recording` runs in the ranks, with torch; everything else reads what the ranks have written, with NumPy alone.
"""

from dpbook.runs.audit.audited_run import Audit, Verdict, audit, judged
from dpbook.runs.audit.findings import Found, Line, passed
from dpbook.runs.audit.journals import Seen, seen
from dpbook.runs.audit.resume import resume_lines
