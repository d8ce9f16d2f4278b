"""How long an update of somebody's own script would take on more ranks, over other links: measured, then simulated.

`recording` takes the time in the ranks, with torch; everything else reads what was written, with NumPy alone.
"""

from dpbook.forecast.links import Connection, connection, measured_here
from dpbook.forecast.medians import Measured, NoForecast
from dpbook.forecast.rows import Checked, Row, checked, forecast
from dpbook.forecast.running import Script, Stopped, measure
from dpbook.forecast.words import as_json, check_in_words, in_words
