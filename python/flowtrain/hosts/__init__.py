"""Connections between hosts: admission, control messages, heartbeats, and the gateway of a host."""

from flowtrain.hosts.control import Control
from flowtrain.hosts.handshake import HostError, HostLeft, Identity, admit, join
from flowtrain.hosts.host_gateway import HostGateway

__all__ = ["Control", "HostError", "HostGateway", "HostLeft", "Identity", "admit", "join"]
