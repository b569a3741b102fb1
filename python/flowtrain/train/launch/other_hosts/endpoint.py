"""How a host takes part in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import flowtrain_core
from flowtrain.hosts import Identity
from flowtrain.hosts.host_gateway import Payloads

STORE = "store"
"""Purpose of connections to the job's store."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """How this host takes part.

    Attributes:
        name: Name of this host for the others.
        host: Numeric address to listen on, or of the peer.
        port: Its port; 0 lets the system choose one to listen on.
        interface: Numeric address on which peers reach the payload path of this host.
        path: Payload path, the same on all hosts.
        ucx: Path of `libucp.so.0` for the path ucx; by default it is searched.
        token: Of the job.
    """

    name: str
    host: str
    port: int
    interface: str
    token: bytes
    path: Payloads = "tcp"
    ucx: str = ""

    def identity(
        self, nonce: str, digests: Mapping[str, str] | None = None, *, purpose: str = "gateway"
    ) -> Identity:
        """Identity of this host in a job.

        Args:
            nonce: Name of the attempt.
            digests: Of `model_digests`; None before the model is known.
            purpose: Use of the connection.
        """
        digests = digests or {}
        return Identity(
            host=self.name,
            version=flowtrain_core.__version__,
            job=nonce,
            incarnation=nonce,
            tower=digests.get("tower", ""),
            processor=digests.get("processor", ""),
            purpose=purpose,
        )
