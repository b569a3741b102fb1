"""Connections to ports of other hosts."""

from __future__ import annotations

import asyncio
import socket

import pytest

from flowtrain.hosts.connect import address_of, connect


def test_a_refused_connection_is_told_in_the_words_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError) as error:
        asyncio.run(connect("127.0.0.1", port))
    assert error.value.strerror == "Connection refused"


def test_a_name_without_an_address_is_told_as_such() -> None:
    with pytest.raises(socket.gaierror):
        asyncio.run(connect("no.such.host.invalid", 1))


def test_an_address_of_ipv6_has_brackets_before_its_port() -> None:
    assert address_of("fd00::1", 4711) == "[fd00::1]:4711"
    assert address_of("10.0.0.1", 4711) == "10.0.0.1:4711"
