"""The network interface of an address, whose name gloo and NCCL need."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from flowtrain.config.checks import ConfigError

_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_NAME_BYTES = 16


def interface_of(address: str) -> str:
    """Name of the interface that has an address of this host.

    Args:
        address: A numeric address.

    Raises:
        ConfigError: No interface has it as its first address.
    """
    wanted = ipaddress.ip_address(address)
    for name in (name for _, name in socket.if_nameindex()):
        if wanted in _addresses(name):
            return name
    raise ConfigError(
        f"{address}: no network interface of this host has this address as its first; give the "
        "address of one, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its name"
    )


def _addresses(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
            found.append(ipaddress.IPv4Address(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]))
        except OSError:
            pass  # It has none.
    if _IPV6_ADDRESSES.exists():
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            digits, *_, of = line.split()
            if of == name:
                found.append(ipaddress.IPv6Address(int(digits, 16)))
    return found
