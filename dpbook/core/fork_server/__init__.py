"""Processes that start at once: a server has loaded their modules already, and forks them."""

from dpbook.core.fork_server.preloading import preload
from dpbook.core.fork_server.starter import METHOD, SHARED, STDERR, STDOUT, Started, Starter
