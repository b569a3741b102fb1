"""`flowtrain host`: encoder ranks of other hosts join a frozen run, over the network.

On the host of the run, `--listen` lets others join. On another one, `--join` makes a folder with
which `flowtrain encoder --job` starts encoder ranks there. Both need the same token, and end with
the run.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import Any

_HELP = "let encoder ranks of other hosts join a frozen run"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("host", help=_HELP, description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="folder of the run, or with --join one for it on this host"
    )
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--listen", metavar="ADDRESS:PORT", help="let other hosts join here")
    does.add_argument("--join", metavar="ADDRESS:PORT", help="join the host that listens there")
    parser.add_argument(
        "--token",
        type=Path,
        required=True,
        metavar="FILE",
        help="secret of the job, the same on all hosts, in a file that only you can read",
    )
    parser.add_argument(
        "--interface",
        metavar="ADDRESS",
        help="address of this host for payloads (default: that of the connection)",
    )
    parser.add_argument("--name", help="name of this host (default: its hostname)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait for the run, or without a connection (default: 300)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.train.launch.other_hosts import Endpoint, host_run, join_host, read_token

    option, address = ("--listen", given.listen) if given.listen else ("--join", given.join)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{option} {address}: write it as 10.0.0.1:4711")
    host = host.strip("[]")
    at = Endpoint(
        name=given.name or socket.gethostname(),
        host=host,
        port=int(port),
        interface=given.interface or (host if given.listen else _address_towards(host, int(port))),
        token=read_token(given.token),
    )
    start = host_run if given.listen else join_host
    return start(given.folder.absolute(), at, timeout_s=given.timeout)


def _address_towards(host: str, port: int) -> str:
    """Address of this host from which packets to another one leave."""
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Sends nothing.
        return str(probe.getsockname()[0])
