"""Audit of a training script: does the data-parallel run compute what one process would with the whole batch?

The script is recorded without being changed. `dpbook.runs.watching` records in the ranks, with torch. Everything here
reads the journals that the ranks wrote, with NumPy alone.
"""

from dpbook.runs.audit.audited_run import Audit, audit, judge_recording, judge_run
from dpbook.runs.audit.findings import CheckResult, Finding, Verdict, passed
from dpbook.runs.audit.journals import RunJournals, read_journals
from dpbook.runs.audit.resume import resume_findings
