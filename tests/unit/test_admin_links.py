"""Connections to Kafka's brokers that are closed while another thread makes them."""

import socket
from typing import Any

import pytest

from config.settings import Settings
from gateway.admin.errors import BrokerUnreachableError
from gateway.admin.link import Link, greeting
from gateway.admin.links import Links
from gateway.admin.login import AdminLogin
from gateway.admin.model import Broker

PLAIN = AdminLogin(Settings.model_validate({"kafka": {"security": "PLAINTEXT"}}))


def test_closed_while_it_connects_it_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    made: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = Link("127.0.0.1", server.getsockname()[1], "Broker 1", PLAIN, "test")

        def late(*arguments: Any, **options: Any) -> socket.socket:
            made.append(connect(*arguments, **options))
            link.close()
            return made[0]

        monkeypatch.setattr(socket, "create_connection", late)
        with pytest.raises(BrokerUnreachableError, match=r"The connection to Broker 1 was closed\."):
            link.ask(greeting(), 10.0)
    assert (made[0].fileno(), link.connected) == (-1, False)


def test_after_the_end_none_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        links = Links([f"127.0.0.1:{port}"], PLAIN, "test", 10.0)
        links.note([Broker(1, "127.0.0.1", port, None)])
        links.close()
        with pytest.raises(BrokerUnreachableError, match="was closed"):
            links.ask(1, greeting())
