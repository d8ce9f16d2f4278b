"""Reports of runs: the page of a training run and its figures, the page of an audit, the table of a benchmark."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbook.runs.report import benchmark, pages, run_summary, script_report
