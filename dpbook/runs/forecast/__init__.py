"""Forecast of a script's update on more ranks and other links: its step is measured, then simulated.

`dpbook.runs.watching` times the ranks, with torch. Everything here reads their journals, with NumPy alone.
"""

from dpbook.runs.forecast.measured_step import (
    WARMUP_UPDATES,
    MeasuredStep,
    NoForecast,
    ScriptStopped,
    measure_step,
    read_step,
)
from dpbook.runs.forecast.predictions import (
    Connection,
    ForecastCheck,
    ForecastRow,
    as_json,
    bucket_limits,
    check_forecast,
    connection,
    fit_connection,
    fitted_connection,
    forecast,
    format_checks,
    format_forecast,
    largest_good_cap,
    simulate_buckets,
    sweep_caps,
)
