"""Chapter 15: When it breaks."""

from dpbook.book.ch15.collection import Exhibit, Mystery, draw, exhibit, exhibits
from dpbook.book.ch15.exercise_cases import blind_case, run_script
from dpbook.book.ch15.exhibit_runs import ScriptJob, bad, print_findings, printed, verdicts, watched
from dpbook.book.ch15.pictures import draw_matrix, play_difference, rank_states, recorded
