"""How long an update of somebody's own script would take on more ranks, over other links: measured, then simulated.

`recording` takes the time in the ranks, with torch; everything else reads what was written, with NumPy alone.
"""

from dpbook.runs.forecast.links import Connection, connection, measured_here
from dpbook.runs.forecast.measured_step import Measured, NoForecast, Script, Stopped, measure
from dpbook.runs.forecast.predictions import Checked, Row, as_json, check_in_words, checked, forecast, in_words
