"""The job's bulletin board: small JSON values in the store that both worlds share."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

from flowtrain.train.control.heartbeat import UNLIMITED_S, Activity

_POLL_S = 0.1


class BoardTimeout(TimeoutError):
    """A peer did not write what this rank waits for in time."""


class Board:
    """Keys with one writer each, read by any rank, deleted when their step has closed.

    A board owns its connection: a blocking read holds it, so each thread opens its own.

    Args:
        address: `host:port` of the job's store.
        nonce: Distinguishes the attempts of a job; no attempt sees another's keys.
        timeout_s: Timeout to connect.
        activity: Told of waits for a key, in a board whose waits a heartbeat ends.
    """

    def __init__(
        self, address: str, nonce: str, *, timeout_s: float, activity: Activity | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.nonce = nonce
        self._activity = activity or Activity()
        self._store: Store = PrefixStore(
            nonce,
            TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s)),
        )
        self._store.set_timeout(timedelta(seconds=UNLIMITED_S))

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

    def get(self, key: str, *, who: str, timeout_s: float = UNLIMITED_S) -> Any:
        """The value of a key, waited for.

        Raises:
            BoardTimeout: `who` did not write it in time.
        """
        self.wait([key], who=who, timeout_s=timeout_s)
        return json.loads(self._store.get(key))

    def wait(self, keys: Sequence[str], *, who: str, timeout_s: float = UNLIMITED_S) -> None:
        """Wait until every key has a value.

        Raises:
            BoardTimeout: `who` did not write them in time.
        """
        try:
            with self._activity.waiting(f"{who} to write {', '.join(keys)}"):
                self._store.wait(list(keys), timedelta(seconds=timeout_s))
        except DistStoreError as error:
            missing = [key for key in keys if not self.has(key)]
            raise BoardTimeout(
                f"{who} did not write {', '.join(missing)} within {timeout_s:g} s"
            ) from error

    def wait_deleted(self, key: str, *, who: str) -> None:
        """Wait until `release` has deleted a key that was there."""
        with self._activity.waiting(f"{who} to release {key}"):
            while self.has(key):
                time.sleep(_POLL_S)

    def read(self, keys: Sequence[str]) -> list[Any]:
        """Values of keys as they are now; None for a key without one."""
        if self._store.check(list(keys)):
            return [json.loads(value) for value in self._store.multi_get(list(keys))]
        return [json.loads(self._store.get(key)) if self.has(key) else None for key in keys]

    def delete(self, key: str) -> None:
        self._store.delete_key(key)

    def claim(self, name: str) -> bool:
        """Take a name that one process may have; whether this call was the first."""
        return self._store.add(f"claimed/{name}", 1) == 1

    def release(self, name: str, keys: Sequence[str], *, readers: int) -> None:
        """Say that this rank is done with some keys; the last of `readers` deletes them."""
        counter = f"released/{name}"
        if self._store.add(counter, 1) == readers:
            for key in (*keys, counter):
                self._store.delete_key(key)
