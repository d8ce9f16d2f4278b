"""Processes that start at once: a server that has loaded their modules forks them."""

from dpbook.core.fork_server.starter import (
    SHARED_SERVERS,
    START_METHOD,
    STDERR,
    STDOUT,
    StartedProcesses,
    Starter,
    preload,
)
