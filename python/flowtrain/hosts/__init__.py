"""Control connections between hosts: admission, authenticated messages, heartbeats."""

from flowtrain.hosts.control import Control
from flowtrain.hosts.handshake import HostError, Identity, admit, join

__all__ = ["Control", "HostError", "Identity", "admit", "join"]
