"""`flowtrain host`: hosts a run whose ranks you start, on this host and on others.

With a YAML file it hosts that run: it prints the torchrun commands that start the ranks, waits for
them, and writes the model. `--listen` lets other hosts take part.

With the folder of a run that goes on, `--listen` lets other hosts take part in that run, and
`--join` lets this host take part in the run of another one. Both end with the run.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
from pathlib import Path
from typing import Any

from flowtrain.cli.addresses import is_numeric, is_unspecified
from flowtrain.cli.train import add_config_options, run_config

_HELP = "host a run whose ranks you start, on this host and on others"
_NAME = re.compile(r"[\w.-]+")
_TIMEOUT_S = 300.0
_OF_OTHERS = {
    "token": None,
    "interface": None,
    "path": "tcp",
    "ucx": "",
    "name": None,
    "timeout": _TIMEOUT_S,
}
"""Options for other hosts, with their defaults."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("host", help=_HELP, description=__doc__)
    parser.add_argument(
        "config",
        type=Path,
        metavar="run",
        help="YAML file of a run, or the folder of one; with --join and a folder that the hosts do "
        "not share, a new folder",
    )
    add_config_options(parser)
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--listen", metavar="ADDRESS:PORT", help="let other hosts join here")
    does.add_argument("--join", metavar="ADDRESS:PORT", help="join the host that listens there")
    parser.add_argument(
        "--token",
        type=Path,
        metavar="FILE",
        help="secret of the job, the same on all hosts, in a file that only you can read",
    )
    parser.add_argument(
        "--interface",
        metavar="ADDRESS",
        help="address of this host for payloads and collectives (default: that of the connection)",
    )
    parser.add_argument(
        "--path",
        choices=("tcp", "ucx", "gpudirect"),
        default="tcp",
        help="how payloads go, the same on all hosts; UCX uses RDMA where the network has it, and "
        "with gpudirect its network card reads memory of GPUs",
    )
    parser.add_argument(
        "--ucx", default="", metavar="FILE", help="libucp.so.0 for UCX (default: searched)"
    )
    parser.add_argument("--name", help="name of this host (default: its hostname)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="S",
        help="seconds to wait for the run, or without a connection (default: 300)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.config import ConfigError
    from flowtrain.config.checks import require

    require(
        0 <= given.timeout < math.inf,
        f"--timeout {given.timeout}: it must be 0 or more, and finite",
    )
    # The folder of a run that has just been started may not be there yet.
    is_missing = not given.config.exists() and given.config.suffix not in (".yaml", ".yml")
    if given.join and given.config.is_file():
        from flowtrain.config import load

        folder = load(given.config, given.overrides).run
        raise ConfigError(
            f"--join {given.join}: give the folder of the run, {folder}, in place of {given.config}"
        )
    is_folder = given.join is not None or given.config.is_dir() or is_missing
    if is_folder and not (given.listen or given.join):
        raise ConfigError(
            f"{given.config}: give its YAML file to host a run, or --listen or --join for one that "
            "goes on"
        )
    if not is_folder:
        unused = [f"--{n}" for n, default in _OF_OTHERS.items() if getattr(given, n) != default]
        if unused and not given.listen:
            raise ConfigError(
                f"{', '.join(unused)}: for other hosts alone; give --listen, too, or leave it out "
                "(flow.start_timeout_s is the wait for ranks)"
            )
        return _host(given)
    if given.overrides or given.plan or given.resume:
        raise ConfigError(
            f"{given.config}: overrides, --plan and --resume are for the YAML file of a run that "
            "begins"
        )
    return _take_part(given)


def _host(given: argparse.Namespace) -> int:
    at = _endpoint(given) if given.listen else None  # Before PyTorch is loaded.
    from flowtrain.train.launch.external import run_external_ranks
    from flowtrain.train.launch.host import Listening

    listening = None
    if at is not None:

        def command(folder: Path) -> list[str]:
            options = ("listen", "token", "name", "interface", "path", "ucx", "timeout")
            values = {name: getattr(given, name) for name in options}
            flags = [(f"--{name}", str(value)) for name, value in values.items() if value]
            return ["host", str(folder), *(word for flag in flags for word in flag)]

        listening = Listening(command, at.interface, at.name)
    return run_config(given, run_ranks=run_external_ranks, listening=listening)


def _take_part(given: argparse.Namespace) -> int:
    from flowtrain.train.launch.other_hosts import host_run, join_host

    start = host_run if given.listen else join_host
    return start(given.config.absolute(), _endpoint(given), timeout_s=given.timeout)


def _endpoint(given: argparse.Namespace) -> Any:
    from flowtrain.cli.addresses import host_and_port
    from flowtrain.config import ConfigError
    from flowtrain.hosts.token import read_token
    from flowtrain.train.launch.other_hosts import Endpoint

    option, address = ("--listen", given.listen) if given.listen else ("--join", given.join)
    host, port = host_and_port(option, address)
    name = given.name or socket.gethostname()
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"--name {name}: a name has letters, digits, '.', '_' and '-'")
    if given.listen:
        _check_listen(host, port, given.interface)
    if given.interface:
        _check_address("--interface", given.interface, 0)
    interface = given.interface or (host if given.listen else _address_towards(host, port))
    token = read_token(given.token)
    if given.listen and given.path != "tcp":  # A host that joins first learns the path there.
        from flowtrain.hosts.ucx import check_ucx

        check_ucx(interface, given.ucx)
    return Endpoint(
        name=name,
        host=host,
        port=port,
        interface=interface,
        token=token,
        path=given.path,
        ucx=given.ucx,
    )


def _check_listen(host: str, port: int, interface: str | None) -> None:
    """Check where to listen before anything is started."""
    from flowtrain.config import ConfigError
    from flowtrain.hosts.connect import address_of

    if interface is None and is_unspecified(host):
        raise ConfigError(
            f"--listen {address_of(host, port)}: it is no address at which other hosts reach "
            "payloads; listen at the address of one network interface, or give that one with "
            "--interface"
        )
    _check_address("--listen", host, port)


def _check_address(option: str, host: str, port: int) -> None:
    from flowtrain.config import ConfigError
    from flowtrain.hosts.connect import address_of, check_listen

    at = address_of(host, port) if port else host
    if not is_numeric(host):
        raise ConfigError(
            f"{option} {at}: it is a name; give the numeric address of a network interface of this "
            "host (ip addr)"
        )
    try:
        check_listen(host, port)
    except OSError as error:
        free = ", and a port that is free, or 0 for any" if port else ""
        why = os.strerror(error.errno) if error.errno else error
        raise ConfigError(f"{option} {at}: {why}; give an address of this host{free}") from error


def _address_towards(host: str, port: int) -> str:
    """Address of this host from which packets to another one leave."""
    from flowtrain.hosts.connect import address_of

    try:
        family = socket.getaddrinfo(host, port)[0][0]
    except socket.gaierror as error:
        at = address_of(host, port)
        raise ValueError(f"--join {at}: {error.strerror}; give an address") from error
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Sends nothing.
        return str(probe.getsockname()[0])
