"""Addresses of hosts, as options give them."""

from __future__ import annotations

import ipaddress

from flowtrain.config.checks import ConfigError


def host_and_port(option: str, text: str, *, port: int | None = None) -> tuple[str, int]:
    """The parts of `10.0.0.1:4711` or `[::1]:4711`.

    Args:
        option: Its name, for the error.
        text: Its value.
        port: Port if there is none in the text; None if there has to be one.

    Raises:
        ConfigError: It is written otherwise.
    """
    host, _, given = text.rpartition(":")
    if port is not None and (not host or text.endswith("]")):
        host, given = text, str(port)
    if not host or not given.isdecimal() or int(given) > 65535:
        raise ConfigError(f"{option} {text}: write it as 10.0.0.1:4711")
    return host.strip("[]"), int(given)


def is_numeric(host: str) -> bool:
    """Whether it is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_unspecified(host: str) -> bool:
    """Whether it is the address of all network interfaces, such as 0.0.0.0 or ::."""
    return is_numeric(host) and ipaddress.ip_address(host).is_unspecified
