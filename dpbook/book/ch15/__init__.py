"""Chapter 15: When it breaks."""

from dpbook.book.ch15.blind_cases import blind_case
from dpbook.book.ch15.collection import Exhibit, exhibit, exhibits
from dpbook.book.ch15.first_difference import moments, play_difference
from dpbook.book.ch15.judging import bad, differences, tell, verdicts
from dpbook.book.ch15.matrix import draw_matrix, recorded
from dpbook.book.ch15.mystery import Mystery, draw
from dpbook.book.ch15.on_ranks import Job, said, watched
from dpbook.book.ch15.script_runs import run_script
