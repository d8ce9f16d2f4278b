"""Is a free port kept for the process that it is meant for, and for nobody else?"""

import socket
import sys

import pytest

from dpbook.ranks import held_port

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is only chosen")


@linux
def test_while_it_is_held_nobody_gets_it_who_does_not_ask_for_it():
    with held_port() as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as later:
        later.bind(("127.0.0.1", port))


def test_a_server_listens_on_it_and_is_found_there():
    with held_port() as port, socket.create_server(("", port)) as server, socket.create_connection(
        ("127.0.0.1", port)
    ) as client:  # fmt: skip
        assert client.getpeername()[1] == port == server.getsockname()[1]
