"""Connections to ports of other hosts, made in a limited time."""

from __future__ import annotations

import asyncio
import os
import socket

# For a peer to take a connection. The kernel tries for minutes, ever more rarely: it would notice
# late that a link is back.
CONNECT_S = 2.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def address_of(host: str, port: int) -> str:
    """`10.0.0.1:4711` or `[fd00::1]:4711`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def connect(host: str, port: int) -> Streams:
    """Connect to a port.

    Raises:
        OSError: It takes no connection, or not within CONNECT_S.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(host, port)
    except TimeoutError as error:
        raise OSError(f"it takes no connection within {CONNECT_S:g} s") from error
    except socket.gaierror:
        raise
    except OSError as error:
        if error.errno is None:
            raise
        # asyncio puts words of its own in place of the system's: not why, but where it failed.
        raise OSError(error.errno, os.strerror(error.errno)) from error


async def check_reach(address: str) -> None:
    """Check that a port can be reached; the connection is closed at once.

    Args:
        address: `address:port`.

    Raises:
        OSError: As of `connect`; the message names the port.
    """
    host, _, port = address.rpartition(":")
    try:
        _, writer = await connect(host.strip("[]"), int(port))
    except OSError as error:
        raise OSError(
            f"its port {address} for payloads cannot be reached: {error.strerror or error}; a "
            "firewall between the hosts may drop what goes there"
        ) from error
    writer.close()


def check_listen(host: str, port: int) -> None:
    """Check that this process can listen at an address.

    Raises:
        OSError: It cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()
