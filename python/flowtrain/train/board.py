"""The job's bulletin board: small JSON values in the store that both worlds share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore


class BoardTimeout(TimeoutError):
    """A peer did not write what this rank waits for in time."""


class Board:
    """Keys with one writer each, read by any rank, deleted when their step has closed.

    A board owns its connection: a blocking read holds it, so each thread opens its own.

    Args:
        address: `host:port` of the job's store.
        nonce: Distinguishes the attempts of a job; no attempt sees another's keys.
        timeout_s: Longest wait to connect.
    """

    def __init__(self, address: str, nonce: str, *, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.nonce = nonce
        self._store: Store = PrefixStore(
            nonce,
            TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s)),
        )

    def clone(self, timeout_s: float = 30.0) -> Board:
        """A board of the same job with a connection of its own, for another thread."""
        return Board(self.address, self.nonce, timeout_s=timeout_s)

    def world(self, name: str) -> Store:
        """The store of one world's process group."""
        return PrefixStore(f"world/{name}", self._store)

    def put(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value, separators=(",", ":")))

    def has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def get(self, key: str, *, timeout_s: float, who: str) -> Any:
        """The value of a key, waited for.

        Raises:
            BoardTimeout: `who` did not write it in time.
        """
        self.wait([key], timeout_s=timeout_s, who=who)
        return json.loads(self._store.get(key))

    def wait(self, keys: Sequence[str], *, timeout_s: float, who: str) -> None:
        try:
            self._store.wait(list(keys), timedelta(seconds=timeout_s))
        except DistStoreError as error:
            missing = [key for key in keys if not self.has(key)]
            raise BoardTimeout(
                f"{who} did not write {', '.join(missing)} within {timeout_s:g} s; if it is only "
                "slow, raise flow.deadline_s (flow.start_deadline_s while models load)"
            ) from error

    def delete(self, key: str) -> None:
        self._store.delete_key(key)

    def release(self, name: str, keys: Sequence[str], *, readers: int) -> None:
        """Say that this rank is done with some keys; the last of `readers` deletes them."""
        counter = f"released/{name}"
        if self._store.add(counter, 1) == readers:
            for key in (*keys, counter):
                self._store.delete_key(key)
